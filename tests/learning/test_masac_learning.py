"""Two agents with continuous actions meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import runnel as rl

SETTINGS: dict[str, Any] = {
    "env": "tensor:Meeting",
    "total_steps": 6_000,
    "num_envs": 16,
    "num_steps": 8,
    "min_fill": 1_000,
    "update_ratio": 0.1,
    "net": {"hidden": (32, 32)},
    "masac": {"gamma": 0.9, "batch_size": 128, "actor_lr": 3e-3, "critic_lr": 3e-3, "tau": 0.02},
    "eval": {"episodes": 100},
    "track": (),
    "checkpoint": {"every": 0},
}


def test_two_agents_meet(tmp_path: Path) -> None:
    """Better than -1.1 on 2 of 3 seeds (from -0.80 to -0.50 on 10 of 10 when it was written). At random they get -6.6, standing
    still -5.4, and by a script that walks straight to the other and slows down -0.5."""
    runs = [rl.train("masac", seed=seed, out=str(tmp_path), **SETTINGS) for seed in (1, 2, 3)]
    assert sum(run.eval["mean"] > -1.1 for run in runs) >= 2
