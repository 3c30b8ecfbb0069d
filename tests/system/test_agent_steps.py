"""Decisions of agents are counted by every recipe of teams, each once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl

RUN: dict[str, Any] = {
    "seed": 3,
    "num_envs": 2,
    "num_steps": 4,
    "net": {"hidden": (8,)},
    "track": (),
    "eval": {"episodes": 0},
    "checkpoint": {"every": 1},
    "progress": False,
}
TURNS = Path(__file__).parents[1] / "unit" / "envs" / "team_envs.py"
REPLAY: dict[str, Any] = {"min_fill": 16, "update_ratio": 0.25, "replay": {"capacity": 64}}
MORE: dict[str, Any] = {
    "qmix": REPLAY | {"qmix": {"batch_size": 8}},
    "masac": REPLAY | {"masac": {"batch_size": 8}},
    "mat": {},
}


@pytest.mark.parametrize("recipe", MORE)
def test_where_everybody_always_decides_they_are_the_steps_times_the_agents(recipe: str, tmp_path: Path) -> None:
    """Also behind a resume: what a replay memory has not reported yet is in the checkpoint."""
    env: dict[str, Any] = {"env": "tensor:Meeting"} if recipe == "masac" else {"env": "tensor:Spread", "env_kwargs": {"N": 2}}
    settings = {**RUN, **env, **MORE[recipe], "total_updates": 9, "log_every": 2, "out": str(tmp_path)}
    run = rl.train(recipe, on_update=lambda row: row["version"] < 4, **settings)
    run = rl.resume(run.path, progress=False)
    rows = [(row["steps"], row["metrics"]["agent_steps"]) for row in run.rows()]
    assert len(rows) == 5
    assert rows[-1][0] > rows[0][0] > 0
    assert [num for _, num in rows] == [2.0 * steps for steps, _ in rows]


def test_only_those_who_decide_are_counted(tmp_path: Path) -> None:
    """In `Turns` one of two agents decides in each step."""
    settings = {**RUN, **MORE["qmix"], "env": f"{TURNS}:Turns"}
    run = rl.train("qmix", total_updates=3, out=str(tmp_path), **settings)
    assert [row["metrics"]["agent_steps"] for row in run.rows()] == [float(row["steps"]) for row in run.rows()]
