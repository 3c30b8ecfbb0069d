"""Actors that never wait for the learner: across processes data does arrive late, but never later than was allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl

TASK: dict[str, Any] = {
    "env": "toy_envs:DictGoal",
    "launcher": "local",
    "num_actors": 2,
    "num_envs": 2,
    "num_steps": 16,
    "track": (),
    "checkpoint": {"every": 0},
    "eval": {"episodes": 4},
}


@pytest.mark.parametrize(("recipe", "max_lag"), [("impala", 1), ("appo", 3)])
def test_a_window_across_processes_is_late_but_bounded(recipe: str, max_lag: int, tmp_path: Path) -> None:
    run = rl.train(
        recipe, total_updates=40, staleness={"mode": "window", "max_lag": max_lag}, num_segments=2, out=str(tmp_path), **TASK
    )
    lags = [row["metrics"]["staleness/max"] for row in run.rows()]
    assert len(lags) == 40
    assert max(lags) > 0, "actors and learner overlap, so some data must be older than the learner"
    assert max(lags) <= max_lag
    assert all(row["metrics"]["staleness/mean"] <= row["metrics"]["staleness/max"] for row in run.rows())
    account = run.rows("end")[-1]["streams"]["trajectories"]
    settled = account["consumed"] + sum(account["dropped"].values()) + sum(account["cancelled"].values())
    assert account["dispatched"] == settled + account["in_flight"]
    assert account["consumed"] == 40 * 2 * 2


def test_one_actor_may_fill_a_whole_batch(tmp_path: Path) -> None:
    """Batches are not tied to actors: three segments an update, from two actors."""
    settings = {**TASK, "launcher": "inproc", "total_updates": 6, "num_segments": 3, "appo": {"num_minibatches": 2}}
    run = rl.train("appo", out=str(tmp_path), **settings)
    assert run.steps == 6 * 3 * 2 * 16


def test_a_window_in_one_process_is_deterministic(tmp_path: Path) -> None:
    settings = {**TASK, "launcher": "inproc", "num_segments": 1, "total_updates": 20}
    runs = [rl.train("appo", out=str(tmp_path / name), **settings) for name in ("one", "two")]
    rows = [[{k: v for k, v in row.items() if k != "time"} for row in run.rows()] for run in runs]
    assert rows[0] == rows[1]
    assert max(row["metrics"]["staleness/max"] for row in rows[0]) == 2


def test_a2c_refuses_older_data() -> None:
    with pytest.raises(rl.ConfigError, match=r"staleness\.mode.*impala"):
        rl.train("a2c", staleness={"mode": "window"})
