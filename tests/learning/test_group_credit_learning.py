"""Drivers of a fleet, whose pay is mostly weather: beside each other they see who did well, and a critic of each cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import runnel as rl
from runnel.nets.team import TeamPolicy

NUM_SYMBOLS = 5
SETTINGS: dict[str, Any] = {
    "env": "runnel.envs.team.toy:Fleet",
    "env_kwargs": {"num_symbols": NUM_SYMBOLS},
    "total_steps": 3_200,
    "num_envs": 8,
    "num_steps": 8,
    "net": {"hidden": (16,)},
    "eval": {"episodes": 0},
    "track": (),
    "checkpoint": {"every": 0},
}
STEPS = {"lr": 0.01, "num_epochs": 4, "num_minibatches": 2, "entropy_coef": 0.01}


def right(credit: str, seed: int, out: Path) -> float:
    """The share of symbols that a driver says right after training."""
    more: dict[str, Any] = {"gamma": 0.0} if credit == "step" else {}
    kind = "critic" if credit == "critic" else "group"
    run = rl.train("ippo", seed=seed, out=str(out), credit=kind, ppo={**STEPS, **more}, **SETTINGS)
    policy = rl.load(run.path)
    assert isinstance(policy, TeamPolicy)
    seen = np.eye(NUM_SYMBOLS, dtype=np.float32)
    return float(np.mean([policy.act({"driver_0": seen[i]})["driver_0"] == i for i in range(NUM_SYMBOLS)]))


def test_a_group_sees_through_the_weather(tmp_path: Path) -> None:
    """At least 0.8 of the symbols are said right on 2 of 3 seeds (all of them on seeds 1 to 5 when it was written, with gamma
    0 and with gamma 0.99); with a critic 0.6 to 0.8 are."""
    assert sum(right(credit, seed, tmp_path) >= 0.8 for seed, credit in ((1, "step"), (2, "group"), (3, "step"))) >= 2
