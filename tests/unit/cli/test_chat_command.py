"""`runnel chat`: lines in, replies out; a run's own environment to watch; and no code of a stranger's folder."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.cli.main import main

ENV = '''
from runnel.core.contracts.chat import Turn


class Two:
    """Two messages, of which each pays a quarter."""

    lane = "inline"

    def reset(self, task, *, seed):
        self.num = 0
        return Turn("say something")

    def step(self, message):
        self.num += 1
        return Turn("thanks", 0.25, terminated=self.num == 2)


def shout(text: str) -> str:
    """Capitals.

    Args:
        text: What to shout.
    """
    return text.upper()
'''
SMALL: dict[str, Any] = {
    **{"num_prompts": 1, "group_size": 2, "max_tokens": 4, "total_updates": 1, "eval": {"episodes": 0}, "max_turns": 3},
    "lm": {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "inner": 64},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    folder = tmp_path_factory.mktemp("chat")
    (folder / "two.py").write_text(ENV)
    return rl.train("grpo", chat=f"{folder / 'two.py'}:Two", out=str(folder / "runs"), **SMALL)


def typed(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def shown(text: str) -> str:
    return "".join(c for c in text if c.isprintable())


def test_each_line_is_a_message_and_only_replies_are_printed(
    run: rl.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "hello\n\nyou?\n/system be kind\nhello\n/reset\nhello\n/quit\nnever said\n")
    assert main(["chat", str(run.path), "--sample"]) == 0
    talk: Any = rl.load(run.path).converse(deterministic=False)  # type: ignore[attr-defined]
    expected = [talk.say("hello"), talk.say("you?")]
    for system in ("be kind", None):
        talk.reset(system=system)
        expected.append(talk.say("hello"))
    talk.close()
    out = shown(capsys.readouterr().out)
    assert out == shown("".join(messages[-1]["content"] for messages in expected))
    assert out


def test_the_exported_model_of_a_run_says_the_same(
    run: rl.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "hello\n")
    assert main(["chat", str(run.path / "model"), "--max-tokens", "4", "--sample"]) == 0
    of_model = capsys.readouterr().out
    typed(monkeypatch, "hello\n")
    assert main(["chat", str(run.path), "--sample"]) == 0
    assert of_model == capsys.readouterr().out
    assert shown(of_model)


def test_a_run_plays_its_environment_while_somebody_watches(run: rl.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(run.path), "--play", "2"]) == 0
    out = capsys.readouterr().out
    assert out.count("user: say something\n") == 2
    assert out.count("assistant: ") == out.count("earned reward +0.25\n") == out.count("user: thanks\n") == 4
    assert out.count("ended: terminated\n") == out.count("\nearned reward +0.5\n") == 2


def test_the_card_of_a_run_shows_code_that_plays_its_environment(run: rl.Run, tmp_path: Path) -> None:
    assert main(["card", str(run.path), "--out", str(tmp_path / "card.md")]) == 0
    text = (tmp_path / "card.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.chdir(run.path.parent):
        exec(code, {})
    assert out.getvalue().count("Happened(") == 1 + 2 * 3 + 1  # the first message; reply, reward and answer twice; the end


def test_in_a_terminal_tools_are_shown_and_a_full_conversation_is_told(
    run: rl.Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    lines = iter(["hello", "x" * 9000, "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    assert main(["chat", str(run.path), "--tools", f"{run.path.parent.parent / 'two.py'}:shout"]) == 0
    out = capsys.readouterr().out
    assert "/system TEXT, /reset, /quit; Ctrl-C stops a reply\n" in out
    assert "the conversation cannot go on: prompt_too_long" in out or "has no room" in out


def test_a_folder_of_somebody_else_runs_no_code_unless_it_is_trusted(
    run: rl.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(run.path, moved)
    typed(monkeypatch, "hello\n")
    assert main(["chat", str(moved)]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main(["chat", str(moved), "--trust"]) == 0


@pytest.mark.parametrize(
    ("args", "field"),
    [
        (["RUN", "--play", "-1"], "play"),
        (["RUN", "--play", "--tools", "calculator"], "tools"),
        (["RUN", "--max-tokens", "0"], "max_tokens"),
        (["RUN", "--tools", "nothing"], "tools"),
        (["MODEL", "--play"], "play"),
        (["nowhere", "--best"], "best"),
        (["nowhere"], "policy"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    args: list[str], field: str, run: rl.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"RUN": str(run.path), "MODEL": str(run.path / "model")}
    assert main(["chat", *(places.get(arg, arg) for arg in args)]) == 2
    assert f"error: {field} = " in capsys.readouterr().err
