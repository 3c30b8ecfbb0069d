"""Hide-and-seek on a grid, in short: the first stage. The benchmark `benchmarks.learning.hide_and_seek` shows the second."""

from __future__ import annotations

from pathlib import Path

import runnel as rl

SETTINGS = {
    "env": "tensor:HideAndSeekGrid",
    "teams": ("hider_.*=hiders", "seeker_.*=seekers"),
    "total_steps": 400_000,
    "num_envs": 128,
    "num_steps": 60,
    "net": {"hidden": (64, 64), "activation": "relu"},
    "ppo": {"num_epochs": 2, "num_minibatches": 8, "lr": 3e-3, "gamma": 0.995, "normalise_reward": True},
    "eval": {"episodes": 0},
    "checkpoint": {"every": 0},
    "track": (),
}


def test_seekers_learn_to_chase(tmp_path: Path) -> None:
    """Against hiders at random seekers get -26 at random."""
    run = rl.train("ippo", seed=1, out=str(tmp_path), **SETTINGS)  # type: ignore[arg-type]
    metrics = run.rows()[-1]["metrics"]
    assert metrics["episode/seeker_return"] > 0
    assert metrics["episode/seeker_return"] == -metrics["episode/hider_return"] == metrics["return/seekers"]
