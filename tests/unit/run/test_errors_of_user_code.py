"""A mistake in a user's code ends a run with one error that shows their lines, on the command line and from any process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.cli.main import main
from runnel.core.clock import ManualClock
from runnel.core.resolve import called
from runnel.run.launchers.groups import as_error
from runnel.run.launchers.member import tell_error
from runnel.run.ledger import Callbacks, Ledger
from runnel.track.folder import RunFolder

NETWORK = """
import torch
from torch import nn


class Peers(nn.Module):
    def __init__(self):
        super().__init__()
        self.score, self.count = nn.Linear(4, 3), 0

    def policy(self, obs):
        self.count += 1
        if self.count > 6:
            raise RuntimeError("tired")
        return self.score(obs["obs"])[..., :2]

    def value(self, obs):
        return self.score(obs["obs"])[..., 2]


def make(env_spec, seed):
    return Peers()


def wrong(env_spec):
    return Peers()
"""
TINY = "train ppo --out {out} --num-envs 2 --num-steps 4 --total-updates 4 --eval.episodes 0 --track --ppo.num-minibatches 1"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NETWORK)
    return tmp_path / "net.py"


def test_a_network_that_raises_is_told_with_its_lines_and_the_version(file: Path, capsys: Any) -> None:
    assert main([*TINY.format(out=file.parent / "runs").split(), "--network", f"{file}:make", "--name", "run"]) == 1
    err = capsys.readouterr().err
    assert "runnel: your code raised RuntimeError: tired\n  net.py:14, in policy\n    raise RuntimeError(" in err
    assert re.search(r"raised by worker '(actor-0|trainer)' at version 0; run folder: ", err)
    assert "Traceback" not in err
    assert "site-packages" not in err
    rows = RunFolder(file.parent / "runs" / "run").read_rows()[0]
    assert any("tired\n  net.py:14, in policy" in row.get("text", "") for row in rows)


def test_a_factory_that_is_called_wrongly_is_told_with_its_line(file: Path, capsys: Any) -> None:
    assert main([*TINY.format(out=file.parent / "runs").split(), "--network", f"{file}:wrong"]) == 2
    assert "it is called as make(env_spec, seed); see net.py:25" in capsys.readouterr().err
    assert not (file.parent / "runs").exists()


class Sent:
    """A control line that keeps what was sent."""

    closed = False

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(json.loads(json.dumps(message)))

    def receive(self) -> list[dict[str, Any]]:
        return []


def sent(call: Any) -> Exception:
    line = Sent()
    with pytest.raises(Exception) as raised:  # noqa: PT011  (whatever a user's code raises)
        call()
    tell_error(line, "actor-0", raised.value)
    return as_error(line.messages[0], 7)


def test_from_another_process_come_the_users_lines_and_no_traceback_of_ours(file: Path) -> None:
    net = rl.make_network(f"{file}:make", None, 0)  # type: ignore[arg-type]
    net.count = 6
    error = sent(lambda: called(net.policy, {}, field="x", target="x", how="x"))
    assert str(error).startswith("worker 'actor-0' failed with RuntimeError: tired\n  net.py:14, in policy")
    assert error.__notes__ == ["raised by worker 'actor-0' at version 7"]
    ours = sent(lambda: rl.core.config.override(None, {}))
    assert "Traceback" in ours.__notes__[1]


def failing(ledger: Ledger, *, num: int) -> None:
    for i in range(num):
        place = {"prompt": f"(prompt {i})", "lines": "\n  reward.py:3, in f\n    return 1 / 0"}
        ledger.add([{"kind": "failure", "worker": "actor-0", "rows": 2, "reason": f"reward_failed: KeyError: {i}", **place}])
        env = {"env": 3, "episode": i, "step": 7, "error": f"KeyError: {i}\n  env.py:9, in step\n    x[{i}]"}
        ledger.add([{"kind": "env_failed", "worker": "actor-0", **env}])


def test_what_breaks_again_and_again_is_told_once_and_counted(tmp_path: Path) -> None:
    ledger = Ledger(RunFolder(tmp_path), ManualClock())
    failing(ledger, num=12)
    ledger.end("finished", 1.0)
    ledger.close()
    texts = [row["text"] for row in RunFolder(tmp_path).read_rows()[0] if row["kind"] == "event"]
    assert texts[0] == (
        "actor-0: 2 rows cancelled: reward_failed: KeyError: 0 (prompt 0)\n  reward.py:3, in f\n    return 1 / 0"
    )
    assert texts[1] == "actor-0: env failed (environment 3, episode 0, step 7): KeyError: 0\n  env.py:9, in step\n    x[0]"
    assert [t.partition(":")[0] for t in texts[2:]] == ["10 times so far"] * 2 + ["12 times in all"] * 2
    assert all("(reward.py:3, in f)" in t or "(env.py:9, in step)" in t for t in texts[2:])


def test_retries_are_told_once_and_counted(tmp_path: Path) -> None:
    ledger = Ledger(RunFolder(tmp_path), ManualClock())
    for i in range(3):
        event = {"kind": "call_retried", "worker": "actor-0", "reason": "ConnectionError: no route", "prompt": f"(prompt {i})"}
        ledger.add([event])
    ledger.end("finished", 1.0)
    ledger.close()
    texts = [row["text"] for row in RunFolder(tmp_path).read_rows()[0] if row["kind"] == "event"]
    first = "actor-0: a reward was called again: ConnectionError: no route (prompt 0)"
    assert texts == [first, f"3 times in all: {first}"]
    assert ledger._beside()["faults/call_retried"] == 3.0


def test_a_callback_that_raises_keeps_its_error_and_says_where(tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        raise LookupError("mine")

    ledger = Ledger(RunFolder(tmp_path), ManualClock(), callbacks=Callbacks(on_episode=stop))
    with pytest.raises(LookupError, match="mine") as error:
        ledger.add([{"kind": "episode", "return": 1.0, "length": 1}])
    assert error.value.__notes__ == ["raised by the callback on_episode at version 0 (0 steps)"]
    ledger.close()
