"""Replay algorithms on truly asynchronous actors with slow, uneven simulators: the update ratio is kept, nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl

ENVS = Path(__file__).parent / "uneven_envs.py"
RATIO, FILL, STEPS, SEGMENT, LAG, ACTORS = 0.5, 96, 480, 8, 16, 2
SMALL: dict[str, Any] = {"net": {"hidden": (16,)}, "track": (), "checkpoint": {"every": 0}, "eval": {"episodes": 0}}


def due(steps: int) -> float:
    """Updates that so many steps pay for."""
    return 1 + (steps - FILL) * RATIO if steps >= FILL else 0


@pytest.mark.parametrize(
    ("recipe", "env"),
    [("sac", "UnevenPointMass"), ("td3", "UnevenPointMass"), ("dqn", "UnevenGoal")],
    ids=["sac", "td3", "dqn"],
)
def test_the_update_ratio_is_kept_with_uneven_asynchronous_actors(recipe: str, env: str, tmp_path: Path) -> None:
    """Two processes play at once: a window of 16 versions lets each be a segment (4 updates) or more ahead of the learner."""
    players: dict[str, int] = {}

    def count(row: dict[str, Any]) -> None:
        players[row["worker"]] = players.get(row["worker"], 0) + 1

    run = rl.train(
        recipe,
        env=f"{ENVS}:{env}",
        launcher="local",
        num_actors=ACTORS,
        staleness={"mode": "window", "max_lag": LAG},
        total_steps=STEPS,
        min_fill=FILL,
        num_steps=SEGMENT,
        update_ratio=RATIO,
        out=str(tmp_path),
        on_episode=count,
        **{recipe: {"batch_size": 32}},
        **SMALL,
    )
    assert run.status == "finished"
    assert set(players) == {"actor-0", "actor-1"}, "both actors played"
    for row in run.rows():
        inserted = row["streams"]["trajectories"]["steps"]
        assert row["version"] <= due(inserted), "the learner never runs ahead of what was paid for"
        ahead = (LAG / RATIO) + ACTORS * SEGMENT
        assert row["version"] >= due(inserted - int(ahead)), "and the actors never run further ahead than the window"
        assert row["metrics"]["staleness/max"] <= LAG
    assert due(STEPS) - SEGMENT * RATIO <= run.version <= due(STEPS)
    for account in run.rows("end")[-1]["streams"].values():
        settled = account["consumed"] + sum(account["dropped"].values()) + sum(account["cancelled"].values())
        assert account["dispatched"] == settled + account["in_flight"]
        assert not account["dropped"]
