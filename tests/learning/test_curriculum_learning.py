"""Curricula find the few tasks that can be learned: ladders of which 3 in 100 can be climbed (`tensor:Ladder`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl

SEEDS = (11, 12)
FEW: dict[str, Any] = {
    "env": "tensor:Ladder",
    "env_kwargs": {"firm": 0.03},
    "zoo": False,
    "total_steps": 20_000,
    "num_envs": 64,
    "num_steps": 8,
    "eval": {"episodes": 0},
    "checkpoint": {"every": "never"},
    "track": (),
    "ppo": {
        **{"lr": 3e-3, "num_epochs": 4, "num_minibatches": 4, "entropy_coef": 0.05},
        **{"normalise_obs": False, "normalise_reward": False},
    },
}


def climbed(kind: str, folder: Path) -> list[float]:
    """How far the policies of both seeds climb ladders of all heights, all of them firm; 1 is to the top of each."""
    found = []
    for seed in SEEDS:
        run = rl.train("ppo", seed=seed, out=str(folder), curriculum={"kind": kind}, **FEW)
        returns = rl.evaluate(run, episodes=500, kwargs={"firm": 1.0}).returns
        found.append(sum(returns) / len(returns))
    return found


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return climbed("uniform", tmp_path_factory.mktemp("uniform"))


def test_alp_gmm_climbs_most_ladders(uniform: list[float], tmp_path: Path) -> None:
    """At least 0.8 on 2 of 2 seeds, and more than even choice on any (seeds 1, 2, 3, 11, 12: 0.91 to 0.98, against 0.38 to
    0.67)."""
    found = climbed("alp_gmm", tmp_path)
    assert min(found) >= 0.8, found
    assert min(found) > max(uniform), (found, uniform)


def test_prioritised_level_replay_climbs_higher_than_even_choice(uniform: list[float], tmp_path: Path) -> None:
    """Higher than even choice on 2 of 2 seeds (seeds 1, 2, 3, 11, 12: 0.73 to 0.94, on each more than even choice)."""
    found = climbed("plr", tmp_path)
    assert all(ours > theirs for ours, theirs in zip(found, uniform, strict=True)), (found, uniform)
