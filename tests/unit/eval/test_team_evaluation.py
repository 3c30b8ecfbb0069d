"""Evaluations of teams: an exact number of episodes, the return of each policy, and episodes that never end by themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from fake_streams import FakeClient
from team_envs import Leaver, Turns

from runnel.core.records import Batch
from runnel.core.routes import sides_of, team_routes
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam
from runnel.eval.teams import TeamEvaluation
from runnel.nets.team import TeamNet


def zeros(rows: Batch) -> Batch:
    """The first action, for every policy in the request."""
    policies = {key.partition("/")[0]: len(x) for key, x in rows.items()}
    return Batch({f"{policy}/action": torch.zeros(n, dtype=torch.int64) for policy, n in policies.items()})


def evaluation(make: Any, teams: tuple[str, ...], *, episodes: int, num_envs: int, max_steps: int = 100) -> TeamEvaluation:
    sides = sides_of(team_routes(teams), ParallelEnv(make(), "probe").spec())
    return TeamEvaluation(
        lambda: SerialTeam(make, num_envs, sides=sides, seed=1),
        episodes=episodes,
        seed=3,
        noise_sizes=dict.fromkeys(sides, 1),
        max_steps=max_steps,
    )


@pytest.mark.parametrize("num_envs", [1, 3])
def test_it_plays_exactly_so_many_episodes_and_tells_the_return_of_each_policy(num_envs: int) -> None:
    played = evaluation(Leaver, ("early_.*=early", "late_.*=late"), episodes=5, num_envs=num_envs)
    result = played.run({"policy": FakeClient(zeros)}, round_index=0)  # type: ignore[dict-item]
    assert result.returns == [3.5] * 5
    assert result.extra == {"length": [5.0] * 5, "return/early": [2.0] * 5, "return/late": [5.0] * 5}
    played.close()


def test_an_episode_is_cut_at_the_limit_and_counts_with_what_it_got() -> None:
    played = evaluation(lambda: Turns(length=10**9), ("x=x", "y=y"), episodes=3, num_envs=2, max_steps=4)
    result = played.run({"policy": FakeClient(zeros)}, round_index=0)  # type: ignore[dict-item]
    assert result.extra["cut"] == [1.0] * 3
    assert result.extra["return/x"] == [2 * 1.0 - 2 * 0.5] * 3
    assert result.returns == [1.0] * 3


class Plus:
    """A network of one number, which it answers."""

    noise_size = 0

    def __init__(self, number: float) -> None:
        self.number = torch.tensor([number])

    def act(self, rows: Batch, *, greedy: bool = False) -> Batch:
        return Batch(action=rows["obs"] + self.number)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"number": self.number}

    def load_state_dict(self, state_dict: Any, *, assign: bool = False) -> None:
        self.number = state_dict["number"]

    def to(self, device: torch.device) -> None:
        """It stays."""


def test_a_team_net_acts_for_the_policies_that_are_asked_and_leaves_fixed_ones_alone() -> None:
    net = TeamNet({"red": Plus(1.0), "blue": Plus(2.0)}, fixed=("blue",))
    assert net.act(Batch({"blue/obs": torch.zeros(1)}))["blue/action"].tolist() == [2.0]
    assert set(net.state_dict()) == {"red/number"}
    net.load_state_dict({"red/number": torch.tensor([5.0])})
    rows = Batch({"red/obs": torch.zeros(1), "blue/obs": torch.zeros(1)})
    assert {k: x.tolist() for k, x in net.act(rows).items()} == {"red/action": [5.0], "blue/action": [2.0]}
