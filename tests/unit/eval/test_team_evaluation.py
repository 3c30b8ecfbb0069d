"""Evaluations of teams: an exact number of episodes, the return of each policy, and episodes that never end by themselves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from fake_streams import FakeClient
from team_envs import Leaver, Turns

from runnel.core.records import Batch
from runnel.core.routes import sides_of, team_routes
from runnel.core.spaces import ArraySpec
from runnel.envs.device import HideAndSeekGrid, TensorTeam
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam
from runnel.eval.tally import EpisodeOutcome, result_of
from runnel.eval.teams import RunningStates, TeamEvaluation
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
    won = {"win_rate/early": [0.0] * 5, "win_rate/late": [1.0] * 5}
    assert result.extra == {"length": [5.0] * 5, "return/early": [2.0] * 5, "return/late": [5.0] * 5, **won}
    played.close()


@pytest.mark.parametrize("max_steps", [100, 3])
def test_what_a_world_says_of_its_episodes_is_told_but_of_those_that_were_cut(max_steps: int) -> None:
    """Nobody moves, so no box does; the hiders' return is that of their policy."""
    world = HideAndSeekGrid(steps=5)
    stats = world.episode_stats(world.initial(1, torch.Generator()))
    sides = sides_of(team_routes(["hider_.*=hiders", "seeker_.*=seekers"]), world.spec)
    played = TeamEvaluation(
        lambda: TensorTeam(world, 4, sides=sides, seed=1),
        episodes=6,
        seed=3,
        noise_sizes=dict.fromkeys(sides, 1),
        max_steps=max_steps,
    )
    extra = played.run({"policy": FakeClient(zeros)}, round_index=0).extra  # type: ignore[dict-item]
    if max_steps < 5:
        assert extra["cut"] == [1.0] * 6
        assert not [key for key in extra if key.startswith("episode/")]
        return
    assert {key for key in extra if key.startswith("episode/")} == {f"episode/{name}" for name in stats}
    assert extra["episode/max_box_move"] == [0.0] * 6
    assert extra["episode/hider_return"] == extra["return/hiders"]
    assert extra["episode/seeker_return"] == extra["return/seekers"]
    assert set(extra["return/hiders"]) <= {-3.0, -1.0, 1.0, 3.0}


def test_an_episode_is_cut_at_the_limit_and_counts_with_what_it_got() -> None:
    played = evaluation(lambda: Turns(length=10**9), ("x=x", "y=y"), episodes=3, num_envs=2, max_steps=4)
    result = played.run({"policy": FakeClient(zeros)}, round_index=0)  # type: ignore[dict-item]
    assert result.extra["cut"] == [1.0] * 3
    assert result.extra["return/x"] == [2 * 1.0 - 2 * 0.5] * 3
    assert result.returns == [1.0] * 3


class Plus:
    """A network of one number, which it answers."""

    noise_size = 0
    state_spec: ClassVar[dict[str, ArraySpec]] = {}

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


def test_who_gets_most_wins_and_a_draw_is_shared() -> None:
    totals = [{"a": 2.0, "b": 1.0, "c": 0.0}, {"a": 1.0, "b": 1.0, "c": 0.0}, {"a": 0.0, "b": 0.0, "c": 0.0}]
    extra = result_of([EpisodeOutcome(0.0, 1, by_policy=by) for by in totals]).extra
    assert extra["win_rate/a"] == [1.0, 0.5, 1 / 3]
    assert extra["win_rate/b"] == [0.0, 0.5, 1 / 3]
    assert "win_rate/a" not in result_of([EpisodeOutcome(0.0, 1, by_policy={"a": 1.0})]).extra


def test_states_move_with_decisions_and_begin_anew_with_episodes() -> None:
    """x moves at steps 0 and 2 of four, y at 1 and 3; the policy counts its decisions."""
    sides = sides_of(team_routes(["x=x", "y=y"]), ParallelEnv(Turns(), "probe").spec())
    vector = SerialTeam(Turns, 2, sides=sides, seed=1)
    vector.reset()
    memory, seen = RunningStates(vector, {"x": {"state/h": ArraySpec((1,))}, "y": {"state/h": ArraySpec((1,))}}), []
    for _ in range(5):
        seen.append([memory.now[f"{name}/state/h"][1].item() for name in "xy"])
        memory.decided(memory.now.map(lambda x: x + 1.0))
        vector.send({name: torch.zeros(2, dtype=torch.int64) for name in "xy"})
        memory.stepped()
    assert seen == [[0, 0], [1, 0], [1, 1], [2, 1], [0, 0]]


def test_an_episode_that_crashed_has_no_return_and_the_next_one_begins_with_zero() -> None:
    class Breaks(Leaver):
        left = 1

        def step(self, actions: dict[str, Any]) -> Any:
            if self._t == 3 and Breaks.left:
                Breaks.left -= 1
                raise RuntimeError("it broke")
            return super().step(actions)

    sides = sides_of(team_routes(["early.*=early", "late.*=late"]), ParallelEnv(Leaver(), "probe").spec())
    made = lambda: SerialTeam(Breaks, 1, sides=sides, seed=1, name="toy", restart=True)  # noqa: E731
    played = TeamEvaluation(made, episodes=3, seed=1, noise_sizes={"early": 1, "late": 1}, max_steps=4)
    result = played.run({"policy": FakeClient(zeros)}, round_index=0)  # type: ignore[dict-item]
    assert result.extra["crashed"] == [1.0, 0.0, 0.0]
    assert len(result.faults) == 1
    assert result.extra["cut"] == [1.0, 1.0]
    assert result.returns == [3.0, 3.0]  # until the cut after four steps: 2 of the one, 4 of the other; nothing of the crash
