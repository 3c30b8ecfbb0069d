"""A team whose pay hangs on what no agent knows alone: a central critic knows, and one for each agent cannot."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

import runnel as rl
from runnel.nets.team import TeamPolicy

NUM_SYMBOLS = 6


def right(policy: TeamPolicy) -> float:
    """The share of right answers, over all that an agent may see."""
    found = []
    for symbol, sign, agent in product(range(NUM_SYMBOLS), (-1.0, 1.0), ("left", "right")):
        seen = np.append(np.eye(NUM_SYMBOLS, dtype=np.float32)[symbol], np.float32(sign))
        found.append(policy.act({agent: seen})[agent] == symbol)
    return float(np.mean(found))


SETTINGS = {
    "env": "runnel.envs.team.toy:Secret",
    "env_kwargs": {"num_symbols": NUM_SYMBOLS, "luck": 10.0},
    "total_steps": 10_000,
    "num_envs": 32,
    "num_steps": 8,
    "net": {"hidden": (32,), "activation": "relu"},
    "eval": {"episodes": 0},
    "track": (),
    "checkpoint": {"every": 0},
}
PPO = {"lr": 3e-3, "num_epochs": 6, "num_minibatches": 1, "entropy_coef": 0.05}


def trained(recipe: str, seed: int, out: Path) -> float:
    """The share of right answers after training."""
    run = rl.train(recipe, seed=seed, out=str(out / recipe), ppo=PPO, **SETTINGS)  # type: ignore[arg-type]
    policy = rl.load(run.path)
    assert isinstance(policy, TeamPolicy)
    return right(policy)


def test_a_central_critic_sees_through_luck(tmp_path: Path) -> None:
    """At least 0.8 of the answers are right on 2 of 3 seeds (all of them, on 5 of 5 when it was written); with `ippo` and these
    settings 0.33 to 0.50 are. Seeds after the second that has them are not played."""
    found: list[float] = []
    for seed in (1, 2, 3):
        found.append(trained("mappo", seed, tmp_path))
        if sum(share >= 0.8 for share in found) == 2:
            return
    pytest.fail(f"too few see through it: {found}")
