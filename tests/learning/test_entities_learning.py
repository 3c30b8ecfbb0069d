"""What five agents have learned, three and nine do: parameters of sets of entities fit teams of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import runnel as rl

SETTINGS: dict[str, Any] = {
    "env": "runnel.envs.team.toy:Swarm",
    "num_envs": 32,
    "num_steps": 4,
    "eval": {"episodes": 0},
    "track": (),
    "ppo": {"lr": 0.01, "num_epochs": 4, "num_minibatches": 2, "entropy_coef": 0.01},
}


def right(kind: str, seed: int, out: Path) -> dict[int, float]:
    """The share of right answers of those who learned as five, by the number of agents with whom they act."""
    net = {"hidden": (16, 16), "entities": kind}
    few = rl.train("ippo", seed=seed, out=str(out), total_steps=2_560, env_kwargs={"num_agents": 5}, net=net, **SETTINGS)
    found = {}
    for num in (3, 9):
        many = {**SETTINGS, "env_kwargs": {"num_agents": num}, "eval": {"episodes": 100}, "init_from": str(few.path)}
        run = rl.train("ippo", seed=seed, out=str(out), total_updates=1, net=net, **{**many, "ppo": {"lr": 0.0}})
        assert run.eval is not None
        found[num] = run.eval["mean"]
    return found


@pytest.mark.parametrize("kind", ["attention", "mean"])
def test_agents_act_in_teams_of_other_sizes(kind: str, tmp_path: Path) -> None:
    """On 1 of 2 seeds, three agents give at least 0.95 right answers and nine 0.85 (on seeds 1 to 5 when it was written: 1.00,
    and 0.91 to 1.00 with attention, 0.98 to 1.00 with the mean). Whoever says its own sign is right in 0.85 and 0.72."""
    found = [right(kind, seed, tmp_path) for seed in (1, 2)]
    assert any(shares[3] >= 0.95 and shares[9] >= 0.85 for shares in found)
