"""A2C, IMPALA and APPO learn: a stated return on a toy task within a stated budget, also from data that is always late; and
none of them takes a cut episode for one that ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runnel as rl
from runnel.core.clock import ManualClock
from runnel.run import registry
from runnel.run.wiring import place, wire

QUIET: dict[str, Any] = {"track": (), "checkpoint": {"every": 0}, "eval": {"episodes": 50}}
LATE: dict[str, dict[str, Any]] = {
    "a2c": {},
    # two actors write twice as much as the learner takes in a round: every batch is as old as the window allows
    "impala": {"num_segments": 1},
    "appo": {"num_segments": 1, "num_steps": 32},
}


@pytest.mark.parametrize("recipe", list(LATE))
def test_learns_the_way_to_a_goal(recipe: str, tmp_path: Path) -> None:
    """DictGoal: at least 0.75 within 4,000 steps, on 2 of 2 seeds (the best possible is about 0.9; each had 0.88 to 0.91 after
    2,560)."""
    task = {"env": "toy_envs:DictGoal", "total_steps": 4_000}
    runs = [rl.train(recipe, seed=seed, out=str(tmp_path), **task, **QUIET, **LATE[recipe]) for seed in (81, 82)]
    found = [run.eval["mean"] for run in runs if run.eval is not None]
    assert min(found) >= 0.75, found
    lag = np.mean([row["metrics"]["staleness/mean"] for run in runs for row in run.rows()])
    bound = {"a2c": 0, "impala": 4, "appo": 2}[recipe]
    assert bound - 0.2 <= lag <= bound


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("a2c", {"total_updates": 500, "a2c": {"gamma": 0.9, "lr": 3e-3}}),
        ("impala", {"total_updates": 500, "impala": {"gamma": 0.9, "lr": 3e-3}}),
        ("appo", {"total_updates": 80, "num_steps": 32, "appo": {"gamma": 0.9, "lr": 3e-3}}),
    ],
)
def test_truncation_is_not_termination(recipe: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """A constant reward of 1 and episodes that are only ever cut: the value is 1 / (1 - gamma) = 10 at every state. A
    learner that took a cut for an end would find about sum(gamma^t, t < 5) = 4.1 at most."""
    task = {"env": "runnel.envs.toy:TruncationTrap", "eval": {"episodes": 0}, "out": str(tmp_path)}
    config = registry.configure(registry.load_recipe(recipe), {**task, **settings, **LATE[recipe]})
    experiment = registry.build(recipe, config)
    group = wire(experiment, place(experiment), "main", clock=ManualClock())
    group.start()
    assert group.trainer is not None
    while not group.trainer.finished:
        group.round()
    obs = {"obs": group.tables["trajectories"].memory.arrays[0]["obs"]}
    values = group.trainer.learner.net.value(obs).detach().numpy()  # type: ignore[attr-defined]
    group.close()
    assert np.allclose(values, 10.0, rtol=0.15), (values.min(), values.max())
