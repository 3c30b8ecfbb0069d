"""Teams whose agents must differ: one network that all share finds it. It reads which agent it chooses for, and what those
before it chose; which of the two does it is not told apart here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import runnel as rl
from runnel.envs.team import toy
from runnel.nets.team import JointPolicy

SETTINGS: dict[str, Any] = {
    "num_envs": 16,
    "num_steps": 8,
    "net": {"hidden": (32,)},
    "eval": {"episodes": 0},
    "track": (),
    "checkpoint": {"every": 0},
}


def played(kind: str, seed: int, out: Path, total_steps: int, episodes: int = 100) -> float:
    """The share of episodes that are paid, with actions drawn as in training."""
    run = rl.train("mat", env=f"runnel.envs.team.toy:{kind}", seed=seed, out=str(out), total_steps=total_steps, **SETTINGS)
    policy, env, total = rl.load(run.path), getattr(toy, kind)(), 0.0
    assert isinstance(policy, JointPolicy)
    for _ in range(episodes):
        obs, _ = env.reset()
        total += env.step(policy.act(obs, deterministic=False))[1]["agent_0"]
    return total / episodes


def test_agents_that_share_all_parameters_divide_the_work(tmp_path: Path) -> None:
    """At least 0.9 of the episodes of `Halves` are paid on 2 of 3 seeds (0.98 or more on seeds 1 to 5 when it was written).
    Agents that choose at once by one policy are paid in at most 2 / 2^4 of them (`test_happo_learning.py`)."""
    assert sum(played("Halves", seed, tmp_path, 2_048) >= 0.9 for seed in (1, 2, 3)) >= 2
