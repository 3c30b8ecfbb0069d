"""Kuhn poker by neural fictitious self-play: the average policy comes near an equilibrium, and the best response never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import runnel as rl
from runnel.core.records import Batch

pytest.importorskip("pyspiel")

SETTINGS: dict[str, Any] = {
    "env": "tensor:Kuhn",
    "total_steps": 60_000,  # 25,000 games
    "num_envs": 64,
    "num_steps": 16,
    "nfsp": {"num_updates": 24, "replay_size": 10_000},
    "eval": {"episodes": 0},
    "track": (),
    "checkpoint": {"every": 0},
}


class BestResponse:
    """The best response that stands beside an average policy, without its exploration."""

    def __init__(self, policy: Any) -> None:
        self.net, self.env_spec = policy.net, policy.env_spec

    def probabilities(self, obs: Any, *, action_mask: Any = None) -> np.ndarray:
        seen = obs["observation"] if isinstance(obs, dict) else obs
        with torch.no_grad():
            found: np.ndarray = self.net.q.probabilities(Batch(obs=torch.as_tensor(seen))).numpy()
        return found


def test_the_average_policy_is_hard_to_exploit(tmp_path: Path) -> None:
    """Below 0.15 on 2 of 3 seeds (0.087 to 0.103 on 5 of 5 when it was written). All moves alike have 0.458, and OpenSpiel's
    NFSP has 0.135 after 330,000 games. The best response alone is not below 0.15 on any seed (0.167 to 0.333)."""
    game = rl.games.SmallGame("kuhn_poker")
    average, best = [], []
    for seed in (1, 2, 3):
        policy: Any = rl.load(rl.train("nfsp", seed=seed, out=str(tmp_path), **SETTINGS).path)
        average.append(game.exploitability(game.strategy(policy)))
        best.append(game.exploitability(game.strategy(BestResponse(policy.policies["player_0"]))))
    assert sum(value < 0.15 for value in average) >= 2, average
    assert min(best) > 0.15, best
