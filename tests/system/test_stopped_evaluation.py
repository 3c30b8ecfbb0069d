"""A run that is stopped while it evaluates ends promptly, with a checkpoint, and goes on as if nothing had been."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.run.checkpoint import Checkpoints

ENV = f"{Path(__file__).parent / 'endless_env.py'}:Endless"
FOREVER = 10**9
TINY: dict[str, Any] = {
    "env": ENV,
    "num_envs": 2,
    "num_steps": 4,
    "vector": {"backend": "serial"},
    "net": {"hidden": (8,)},
    "total_updates": 5,
    "track": (),
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "checkpoint": {"every": 0},
}


def train(out: Path, name: str, *, stopped: bool, **settings: Any) -> rl.Run:
    flag = out / "flag"
    if stopped:
        flag.write_text(str(os.getpid()))
    return rl.train("ppo", out=str(out), name=name, env_kwargs={"flag": str(flag)}, **{**TINY, **settings})


def rows(run: rl.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "time"} for kind in ("update", "eval") for row in run.rows(kind)]


def notes(run: rl.Run) -> list[str]:
    return [row["text"] for row in run.rows("event")]


def test_sigterm_in_an_evaluation_and_then_a_resume_is_the_same_run(tmp_path: Path) -> None:
    settings = {"eval": {"every": 2, "episodes": 2, "max_steps": 150}}
    whole = train(tmp_path, "whole", stopped=False, **settings)
    stopped = train(tmp_path, "stopped", stopped=True, **settings)
    assert (stopped.status, stopped.version) == ("stopped", 2)
    assert "evaluator: the evaluation of version 2 was interrupted" in notes(stopped)
    assert stopped.rows("eval") == []
    assert Checkpoints(stopped.path / "checkpoints").newest()[1]["version"] == 2
    resumed = rl.resume(stopped.path)
    assert resumed.status == "finished"
    assert rows(resumed) == rows(whole)
    assert [(r["version"], r["cut"]) for r in resumed.rows("eval")] == [(2, 2), (4, 2), (5, 2)]


def test_sigterm_in_the_last_evaluation_leaves_what_was_learned(tmp_path: Path) -> None:
    run = train(tmp_path, "run", stopped=True, eval={"episodes": 1, "max_steps": FOREVER})
    assert (run.status, run.version) == ("stopped", 5)
    assert Checkpoints(run.path / "checkpoints").newest()[1]["version"] == 5


@pytest.mark.parametrize("apart", [False, True], ids=["with the trainer", "in its own process"])
def test_sigterm_in_an_evaluation_across_processes(apart: bool, tmp_path: Path) -> None:
    groups = ("actor-*", "trainer", "evaluator") if apart else ()
    settings = {"total_updates": 100_000, "placement": {"groups": groups}, "eval": {"every": 2, "episodes": 1}}
    settings["eval"] |= {"max_steps": FOREVER}
    run = train(tmp_path, "run", stopped=True, launcher="local", **settings)
    assert run.status == "stopped"
    assert any("was interrupted" in note for note in notes(run))
    assert run.rows("eval") == []
    assert Checkpoints(run.path / "checkpoints").newest()[1]["version"] == run.version >= 2


def test_rows_of_an_evaluator_in_its_own_process_have_the_steps_of_their_version(tmp_path: Path) -> None:
    settings = {"total_updates": 60, "placement": {"groups": ("actor-*", "trainer", "evaluator")}}
    settings["eval"] = {"every": 1, "episodes": 1, "max_steps": 200}
    run = train(tmp_path, "run", stopped=False, launcher="local", **settings)
    steps = {row["version"]: row["steps"] for row in run.rows("update")}
    found = run.rows("eval")
    assert found[-1]["version"] == 60
    assert [row["steps"] for row in found] == [steps.get(row["version"], 0) for row in found]
