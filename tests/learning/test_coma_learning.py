"""Drivers of a fleet that are paid together: whose merit it was is for the critic to find out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import runnel as rl
from runnel.nets.team import TeamPolicy

NUM_SYMBOLS = 5
SETTINGS: dict[str, Any] = {
    "env": "runnel.envs.team.toy:Fleet",
    "env_kwargs": {"num_agents": 8, "num_symbols": NUM_SYMBOLS, "luck": 0.0, "shared": True},
    "num_envs": 16,
    "num_steps": 8,
    "net": {"hidden": (32,)},
    "eval": {"episodes": 0},
    "track": (),
    "checkpoint": {"every": 0},
}
STEPS: dict[str, dict[str, Any]] = {
    "coma": {"coma": {"gamma": 0.0, "lr": 0.03, "critic_lr": 5e-3, "critic_steps": 16}},
    "mappo": {"ppo": {"gamma": 0.0, "lr": 0.03}},
    "ippo": {"ppo": {"gamma": 0.0, "lr": 0.03}},
}


def right(recipe: str, seed: int, out: Path, total_steps: int = 3_200) -> float:
    """The share of symbols that the drivers say right after training."""
    run = rl.train(recipe, seed=seed, out=str(out), total_steps=total_steps, **STEPS[recipe], **SETTINGS)
    policy = rl.load(run.path)
    assert isinstance(policy, TeamPolicy)
    seen = np.eye(NUM_SYMBOLS, dtype=np.float32)
    return float(np.mean([policy.act({"driver_0": seen[i]})["driver_0"] == i for i in range(NUM_SYMBOLS)]))


def test_each_finds_what_it_has_to_do_with_it(tmp_path: Path) -> None:
    """At least 0.8 of the symbols are said right on 2 of 3 seeds: all on seeds 1 to 5 when it was written, as `mappo` does;
    `ippo` 0.8, 0.8, 1.0, 1.0 and 1.0. A random policy says 0.2 of them right."""
    assert sum(right("coma", seed, tmp_path) >= 0.8 for seed in (1, 2, 3)) >= 2
