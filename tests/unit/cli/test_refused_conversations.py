"""Conversations that cannot work are refused before a run is made, with the field, the value and the fix."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from runnel.cli.main import main

ENVS = '''
from runnel.core.contracts.chat import Turn


class Fine:
    lane = "inline"

    def reset(self, task, *, seed):
        return Turn("hello")

    def step(self, message):
        return Turn("thanks", 1.0, terminated=True)


class Plain(Fine):
    def reset(self):
        return Turn("hello")


class Says(Fine):
    def reset(self, task, *, seed):
        return "hello"


class Down(Fine):
    def reset(self, task, *, seed):
        raise ConnectionError("the server is down")


class Long(Fine):
    def reset(self, task, *, seed):
        return Turn("hello " * 200)


class Flaky(Fine):
    """Its first conversation has no server."""

    num = 0

    def reset(self, task, *, seed):
        Flaky.num += 1
        if Flaky.num == 1:
            raise ConnectionError("not yet")
        return Turn("hello")


NUMBER = 3
'''
REFUSED = {
    "--chat {env}:Long": (
        "lm.max_positions = 512: the first prompt of 'Long' has 1203 tokens",
        "use at least 1536, or a --model",
    ),
    "--chat {env}:Long --lm.max-positions 4096 --max-context 600": ("max_context = 600:", "use at least 1536 (now 600)"),
    "--chat {env}:Fine --max-context 600": ("max_context = 600:", "use at most that, or raise lm.max_positions"),
    "--chat {env}:Plain": (
        "chat = '{env}:Plain': no conversation begins: reset: TypeError",
        "called as reset(task, seed=seed)",
    ),
    "--chat {env}:Says": ("the environment gave str instead of a Turn; return Turn(text)", "runnel check-chat says more"),
    "--chat {env}:Down": ("ConnectionError: the server is down; runnel check-chat says more", 'raise ConnectionError("the'),
    "--chat {env}:NUMBER": ("chat = '{env}:NUMBER': is no function (int)", "name the class of an environment"),
    "--chat {env}": ("chat = '{env}': write {env}:NAME",),
    "--chat calculater": ("chat = 'calculater': did you mean 'calculator'?", "or write file.py:make_env"),
    "--task reverse --tools calculatr": ("tools = 'calculatr': is no built-in tool; did you mean 'calculator'?",),
    "--task reverse --tools {env}": ("tools = '{env}': write {env}:NAME",),
    "--task reverse --tools search:nowhere": ("tools = 'nowhere': there is no such file or folder",),
    "--task reverse --tools calculator --max-turns 1": ("max_turns = 1: a call of a tool is one reply", "use at least 2"),
    "--task reverse --tools calculator --warmup-updates 1": ("warmup_updates = 1: prompts with tools", "script()"),
    "--chat {env}:Fine --warmup-updates 1": ("chat = '{env}:Fine': it has no script() to imitate", "warmup_updates 0"),
}


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "envs.py").write_text(ENVS)
    monkeypatch.chdir(tmp_path)
    return str(tmp_path / "envs.py")


@pytest.mark.parametrize("line", list(REFUSED))
def test_what_cannot_work_is_refused_and_no_run_is_made(line: str, env: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(Path().rglob("*"))
    small = "--total-updates 2 --lm.layers 1 --lm.width 16 --lm.inner 32 --track --name refused"
    assert main(shlex.split(f"train grpo {line} {small}".replace("{env}", env))) == 2
    said = capsys.readouterr().err
    assert all(text.replace("{env}", env) in said for text in REFUSED[line]), said
    assert {p for p in Path().rglob("*") if "__pycache__" not in str(p)} == before


def test_an_environment_that_begins_at_the_second_try_is_not_refused(env: str) -> None:
    small = "--num-prompts 1 --group-size 2 --max-tokens 2 --lm.layers 1 --lm.width 16 --lm.inner 32 --eval.episodes 0"
    assert main(shlex.split(f"train grpo --chat {env}:Flaky --total-updates 1 --max-turns 2 {small} --track --name flaky")) == 0


def test_conversations_and_tools_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    told = capsys.readouterr().out.partition("conversations (--chat)")[2]
    assert "  calculator " in told.partition("tools (--tools)")[0]
    assert "  search:PATH " in told.partition("tools (--tools)")[2]


@pytest.mark.parametrize("line", ["ppo --chat guess", "sft --tools calculator", "sac --teams each"])
def test_a_setting_of_other_recipes_is_refused_with_their_names(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *line.split()]) == 2
    assert "is no setting of this recipe; " in (said := capsys.readouterr().err)
    assert ("mappo" if "teams" in line else "gigpo") in said
