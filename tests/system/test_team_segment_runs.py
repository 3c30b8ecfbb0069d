"""Runs whose worlds play whole segments at once, as they do beside policies on a GPU; here they do so on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.graphs.team_lane import why_on_cpu

RUN: dict[str, Any] = {
    "seed": 3,
    "num_envs": 8,
    "num_steps": 8,
    "total_updates": 3,
    "net": {"hidden": (8,)},
    "track": (),
    "name": "run",
    "checkpoint": {"every": 1},
    "eval": {"episodes": 0},
    "progress": False,
}
SPREAD = {"env": "tensor:Spread", "env_kwargs": {"N": 2, "max_cycles": 5}}
ONCE = {"ppo": {"num_epochs": 1}}
RECIPES: dict[str, dict[str, Any]] = {
    "ippo": {
        "env": "tensor:Leduc",
        "teams": ("player_0=first", "player_1=second"),
        "net": {"hidden": (8,), "core": "gru"},
        **ONCE,
    },
    "mappo": {**SPREAD, **ONCE},
    "happo": {**SPREAD, "happo": {"num_epochs": 1}},
    "coma": SPREAD,
    "selfplay": {"env": "tensor:TicTacToe", "pool": {"size": 2, "every": 1, "openings": 1}, **ONCE},
}


def params(run: rl.Run) -> bytes:
    return (sorted((run.path / "checkpoints").glob("0*"))[-1] / "params.safetensors").read_bytes()


def texts(run: rl.Run) -> str:
    return "\n".join(row["text"] for row in run.rows("event"))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU were a device for whole segments."""
    monkeypatch.setattr("runnel.graphs.team_task.why_on_cpu", lambda c: "")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**RUN, **RECIPES[recipe]}
    whole = rl.train(recipe, out=str(tmp_path / "whole"), **settings)
    assert (whole.status, whole.version, whole.steps) == ("finished", 3, 3 * 8 * 8)
    first, last = whole.rows()[0], whole.rows()[-1]
    assert 0 < first["metrics"]["agent_steps"] < last["metrics"]["agent_steps"]
    assert last["metrics"]["episodes"] > first["metrics"]["episodes"]
    stopped = rl.train(recipe, out=str(tmp_path / "stopped"), on_update=lambda row: row["version"] < 1, **settings)
    assert (stopped.status, stopped.version) == ("stopped", 1)
    monkeypatch.undo()  # a run goes on as it was begun: its worlds are in the checkpoint
    resumed = rl.resume(stopped.path, progress=False)
    assert params(resumed) == params(whole)
    assert [row["metrics"] for row in resumed.rows()] == [row["metrics"] for row in whole.rows()]


def test_a_run_that_was_begun_step_by_step_goes_on_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**RUN, **SPREAD, **ONCE}
    whole = rl.train("mappo", out=str(tmp_path / "whole"), **settings)
    stopped = rl.train("mappo", out=str(tmp_path / "stopped"), on_update=lambda row: row["version"] < 1, **settings)
    monkeypatch.setattr("runnel.graphs.team_task.why_on_cpu", lambda c: "")
    resumed = rl.resume(stopped.path, progress=False)
    assert params(resumed) == params(whole)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, ""),
        ({"num_env_groups": 2}, "num_env_groups 1"),
        ({"teams": ("agent_0=a: 4 steps", ".*=b")}, "differ in length"),
        ({"env": "runnel.envs.team.toy:Whisper", "env_kwargs": {}, "teams": ("each",)}, "not one of tensors"),
    ],
)
def test_what_cannot_be_played_at_once_is_said(settings: dict[str, Any], says: str) -> None:
    config = rl.graphs.TeamConfig(**{"num_envs": 6, "num_steps": 8, "total_updates": 1, **SPREAD, **settings})
    task = rl.graphs.TeamTask(config)
    assert (says or "device is cpu") in task.why_on_cpu()


def test_where_worlds_stay_on_the_cpu_beside_a_gpu() -> None:
    """The reasons, in words; a config for a GPU is not checked here, where there is none."""

    def config(**settings: Any) -> rl.graphs.TeamConfig:
        return rl.graphs.TeamConfig(**{"device": "cuda", "total_updates": 1, "num_steps": 8, **SPREAD, **settings})

    assert why_on_cpu(config()) == ""
    assert rl.graphs.TeamTask(config()).about_worlds() == []
    assert "launcher local" in why_on_cpu(config(launcher="local"))
    (text,) = rl.graphs.TeamTask(config(num_env_groups=2)).about_worlds()
    assert text.startswith("tensor:Spread: its worlds step on the CPU, and policies on cuda are asked at every step, because")
    (text,) = rl.graphs.TeamTask(config()).about_worlds("of something else")
    assert text.endswith("because of something else")
    assert rl.graphs.TeamTask(config(env="runnel.envs.team.toy:Whisper", env_kwargs={}, teams=("each",))).about_worlds() == []


@pytest.mark.cuda
@pytest.mark.parametrize("recipe", RECIPES)
def test_on_a_gpu_a_run_trains_and_goes_on(recipe: str, tmp_path: Path) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    settings = {**RUN, **RECIPES[recipe], "num_envs": 64, "device": "cuda"}
    stopped = rl.train(recipe, out=str(tmp_path), on_update=lambda row: row["version"] < 2, **settings)
    assert "where all policies play a whole segment at once" in texts(stopped)
    resumed = rl.resume(stopped.path, progress=False)
    assert (resumed.status, resumed.version) == ("finished", 3)
