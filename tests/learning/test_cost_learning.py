"""PPO-Lagrangian holds a cost under its limit where PPO breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl

SETTINGS: dict[str, Any] = {
    "env": "tensor:GoalBeyondHazard",
    "total_steps": 40_000,
    "eval.episodes": 200,
    "checkpoint.every": 0,
    "track": (),
    "compiled": "off",
}
LIMIT, RETURN = 2.0, 6.5


def test_a_cost_stays_under_its_limit_and_the_goal_is_reached(tmp_path: Path) -> None:
    """On 2 of 3 seeds greedy episodes cost less than 2 and return more than 6.5 (the way round the hazard returns 7.1). Seeds
    after the second that does are not played. PPO returns 7.6 and costs 13."""
    limits = {"lagrangian.limits": {"hazard": LIMIT}, "out": str(tmp_path)}
    found: list[tuple[float, float]] = []
    for seed in (61, 62, 63):
        row = rl.train("ppo_lagrangian", seed=seed, **limits, **SETTINGS).eval
        assert row is not None
        found.append((row["mean"], row["extra"]["cost/hazard"]))
        if sum(mean > RETURN and cost < LIMIT for mean, cost in found) == 2:
            break
    else:
        pytest.fail(f"too few hold it: {found}")
    plain = rl.train("ppo", seed=61, out=str(tmp_path), **SETTINGS | {"total_steps": 25_000}).eval
    assert plain is not None
    assert plain["mean"] > 7.2
    assert plain["extra"]["cost/hazard"] > 10.0
