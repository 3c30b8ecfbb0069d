"""`rl.train` and `rl.resume` say how far they are, where somebody looks."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import runnel as rl

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 4,
    "vector.backend": "serial",
    "net.hidden": (4,),
    "total_updates": 2,
    "eval.episodes": 1,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """What was written, without colours and moves of the cursor."""
        return re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", self.getvalue())


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """From now on this process prints to a terminal. (Not a fixture: pytest takes stdout back between setup and test.)"""
    for name in ("CI", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert isinstance(sys.stdout, Terminal)
    return sys.stdout


def test_in_a_terminal_it_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    run = rl.train("ppo", out=str(tmp_path), **TINY)
    assert "CartPole-v1" in screen.text()
    assert "2 of 2 updates" in screen.text()
    screen.truncate(0)
    rl.resume(run.path, total_updates=3)
    assert "3 of 3 updates" in screen.text()


def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal(monkeypatch)
    rl.train("ppo", out=str(tmp_path), progress=False, **TINY)
    assert screen.getvalue() == ""


def test_a_file_stays_empty_unless_one_asks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rl.train("ppo", out=str(tmp_path), **TINY)
    assert capsys.readouterr().out == ""
    rl.train("ppo", out=str(tmp_path), progress=True, **TINY)
    assert "2 of 2 updates" in capsys.readouterr().out
