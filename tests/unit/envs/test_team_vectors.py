"""Vectors of environments with several agents: rows, early leavers, turns, seeds, and a resume in the middle of an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from team_envs import Leaver, Masked, Turns

from runnel.core.errors import DataError
from runnel.core.routes import sides_of, team_routes
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam

ROUTES = ("early_.*=early", "late_.*=late")


def team(
    make: Callable[[], Any] = Leaver,
    num_envs: int = 2,
    teams: tuple[str, ...] = ROUTES,
    seed: int = 1,
    *,
    restart: bool = False,
) -> SerialTeam:
    sides = sides_of(team_routes(teams), ParallelEnv(make(), "probe").spec())
    return SerialTeam(make, num_envs, sides=sides, seed=seed, name="toy", restart=restart)


def zeros(vector: SerialTeam) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(len(out.reward), dtype=torch.int64) for name, out in vector.outs.items()}


def play(vector: SerialTeam, num_steps: int) -> None:
    """Play the first action that is open."""
    for _ in range(num_steps):
        masks = {policy: out.action_mask for policy, out in vector.outs.items()}
        vector.send({p: first if masks[p] is None else masks[p].long().argmax(1) for p, first in zeros(vector).items()})


def seen(vector: SerialTeam) -> dict[str, dict[str, list[Any]]]:
    """Everything that a vector shows now, as plain numbers."""
    shown = {}
    for name, out in vector.outs.items():
        assert out.active is not None
        assert out.final_rows is not None
        n = len(out.final_rows)
        flags = {"terminated": out.terminated, "truncated": out.truncated, "active": out.active, "reward": out.reward}
        arrays = {**out.obs, **flags, **{f"final_{k}": x[:n] for k, x in out.final_obs.items()}}
        shown[name] = {k: x.tolist() for k, x in arrays.items()} | {"final_rows": list(out.final_rows)}
    return shown


def test_one_who_leaves_early_ends_at_its_last_decision_and_is_silent_until_the_episode_is_over() -> None:
    vector = team(num_envs=1)
    vector.reset()
    early, late = vector.outs["early"], vector.outs["late"]
    record = []
    for _ in range(6):
        active = (bool(early.active[0]), bool(late.active[0]))
        vector.send(zeros(vector))
        record.append((*active, early.reward.item(), early.terminated.item(), late.terminated.item(), late.truncated.item()))
    assert record == [
        (True, True, 1.0, False, False, False),
        (True, True, 1.0, True, False, False),
        (False, True, 0.0, False, False, False),
        (False, True, 0.0, False, False, False),
        (False, True, 0.0, False, False, True),
        (True, True, 1.0, False, False, False),
    ]
    (episode,) = vector.episodes()
    assert (episode.total, episode.length, dict(episode.by_policy)) == (3.5, 5, {"early": 2.0, "late": 5.0})


def test_final_observations_are_those_of_the_last_step_and_rows_of_the_silent_are_zeros() -> None:
    vector = team(num_envs=1)
    vector.reset()
    for _ in range(2):
        vector.send({"early": torch.ones(1, dtype=torch.int64), "late": torch.zeros(1, dtype=torch.int64)})
    out = vector.outs["early"]
    assert out.final_rows == [0]
    assert out.final_obs["obs"][0, :2].tolist() == [2.0, 1.0]
    assert out.obs["obs"].tolist() == [[0.0, 0.0, 0.0]]
    vector.send(zeros(vector))
    assert vector.outs["early"].final_rows == []


def test_one_who_waits_is_inactive_without_a_flag_and_gets_its_rewards_meanwhile() -> None:
    vector = team(Turns, 1, ("x=x", "y=y"))
    vector.reset()
    record = []
    for _ in range(4):
        active = [bool(vector.outs[name].active[0]) for name in ("x", "y")]
        vector.send(zeros(vector))
        record.append((active, [vector.outs[n].reward.item() for n in "xy"], [vector.outs[n].terminated.item() for n in "xy"]))
    assert record == [
        ([True, False], [1.0, -0.5], [False, False]),
        ([False, True], [-0.5, 1.0], [False, False]),
        ([True, False], [1.0, -0.5], [False, False]),
        ([False, True], [-0.5, 1.0], [True, True]),
    ]


def test_rows_are_environment_major() -> None:
    vector = team(Turns, 3, (".*=shared",))
    vector.reset()
    assert vector.outs["shared"].active.tolist() == [True, False] * 3
    assert vector.sides["shared"].agents == ("x", "y")


@pytest.mark.parametrize(("make", "teams"), [(Leaver, ROUTES), (Turns, (".*=shared",))])
@pytest.mark.parametrize("steps", [0, 1, 3, 7])
def test_a_vector_goes_on_bit_for_bit_also_with_a_dead_agent_in_the_middle_of_an_episode(
    make: Callable[[], Any], teams: tuple[str, ...], steps: int
) -> None:
    rng = np.random.default_rng(0)

    def actions(vector: SerialTeam) -> dict[str, torch.Tensor]:
        return {n: torch.from_numpy(rng.integers(0, 2, len(out.reward))) for n, out in vector.outs.items()}

    first = team(make, 2, teams)
    first.reset()
    for _ in range(steps):
        first.send(actions(first))
    saved = first.snapshot()
    second = team(make, 2, teams, seed=99)
    second.restore(saved)
    for _ in range(8):
        same = actions(first)
        first.send(same)
        second.send(same)
        assert seen(first) == seen(second)
    assert first.episodes() == second.episodes()
    assert second.snapshot()["clock"] == steps + 8


def test_an_environment_that_is_not_deterministic_is_told_at_a_resume() -> None:
    class Random(Leaver):
        def _obs(self) -> dict[str, Any]:
            self._rng = np.random.default_rng()
            return super()._obs()

    first = team(Random)
    first.reset()
    first.send(zeros(first))
    with pytest.raises(DataError, match="is not deterministic: a replay of its episode gave agent 'early_0'"):
        team(Random).restore(first.snapshot())


@pytest.mark.parametrize("in_obs", [True, False])
def test_masks_come_in_infos_or_inside_the_observation_and_allow_all_where_nobody_decides(in_obs: bool) -> None:
    vector = team(lambda: Masked(in_obs), 1)
    vector.reset()
    early, late = vector.outs["early"], vector.outs["late"]
    masks = []
    for _ in range(6):
        assert early.action_mask is not None
        masks.append(early.action_mask[0].tolist())
        vector.send({"early": early.action_mask.long().argmax(1), "late": torch.zeros(1, dtype=torch.int64)})
    assert masks == [[False, True]] * 2 + [[True, True]] * 3 + [[False, True]]
    assert late.action_mask is None
    assert set(early.obs) == ({"obs/seen"} if in_obs else {"obs"})


class Silent(Leaver):
    """Its last agent leaves without a flag."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, terminated, _, infos = super().step(actions)
        return obs, rewards, terminated, {}, infos


class Blind(Leaver):
    """It forgets an observation."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, *rest = super().step(actions)
        obs.pop("late_0", None)
        return obs, *rest


class Raises(Leaver):
    def step(self, actions: dict[str, Any]) -> Any:
        raise RuntimeError("it broke")


class Haunted(Leaver):
    """One who has left is still paid."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, {**rewards, "early_0": 1.0}, *rest


class Back(Leaver):
    """One who has left comes back in the same episode."""

    def step(self, actions: dict[str, Any]) -> Any:
        found = super().step({agent: actions.get(agent, 0) for agent in self.agents})
        self.agents = sorted({*self.agents, "early_0"}) if self._t == 4 else self.agents
        return found


class Renamed(Leaver):
    """Its second agent has another name in every episode."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.agents = ["early_0", f"late_{seed}"]
        return found


class Shut(Masked):
    """No action is legal at the second decision."""

    def _infos(self, agents: Any) -> dict[str, Any]:
        return {a: {"action_mask": np.array([0, int(self._t != 1)], np.int8)} if a == "early_0" else {} for a in agents}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Haunted, r"gave rewards of 'early_0', which had ended at an earlier step; that would be lost\. Leave it out"),
        (Back, "agent 'early_0' is in `agents` again after it has ended; .* give one that comes in later a name of its own"),
        (Shut, r"gave the action_mask \[False, False\]; .* at least one open action .*\(agent 'early_0'\)"),
        (Silent, "no agent is left, but 'late_0' never got terminated or truncated"),
        (Blind, "gave no observation of 'late_0'; give one to each agent in `agents`, and to each that ends in this step"),
        (Raises, r"environment 'toy' \(index 0, episode 0, step 1\) raised RuntimeError: it broke"),
    ],
)
def test_what_breaks_the_contract_is_told_with_its_place(make: Callable[[], Any], text: str) -> None:
    vector = team(make)
    vector.reset()
    with pytest.raises(DataError, match=text):
        play(vector, 6)


def test_agents_that_change_their_names_are_told() -> None:
    vector = team(Renamed)
    with pytest.raises(
        DataError, match=r"agent 'late_\d+' is in `agents`, but not in `possible_agents` \('early_0', 'late_0'\)"
    ):
        vector.reset()


def test_one_who_has_left_may_stay_in_agents_to_the_end() -> None:
    """Some environments never shorten `agents`. Nothing is lost by that: who has ended does not decide."""

    class Stays(Leaver):
        def step(self, actions: dict[str, Any]) -> Any:
            self.agents = [agent for agent in self.agents if agent in actions]
            found = super().step(actions)
            self.agents = list(self.possible_agents)
            return found

    plain, sloppy = team(num_envs=1), team(Stays, num_envs=1)
    for vector in (plain, sloppy):
        vector.reset()
    for _ in range(8):
        for vector in (plain, sloppy):
            vector.send(zeros(vector))
        assert seen(plain) == seen(sloppy)


def test_actions_outside_of_their_space_are_refused() -> None:
    vector = team()
    vector.reset()
    with pytest.raises(
        DataError, match="policy 'early' gave actions outside of their space; a choice is an integer from 0 to 1"
    ):
        vector.send({**zeros(vector), "early": torch.tensor([0, 2])})
    with pytest.raises(DataError, match="actions of shape"):
        vector.send({**zeros(vector), "late": torch.zeros(3, dtype=torch.int64)})


# --------------------------------------------------------------------------------------------- environments that are made anew
class BreaksAt(Turns):
    """It breaks at its move number `at`, unless another copy has broken before."""

    broken = 0

    def __init__(self, at: int = 2, times: int = 1) -> None:
        super().__init__()
        self.at, self.times = at, times

    def step(self, actions: dict[str, Any]) -> Any:
        if self._t + 1 == self.at and BreaksAt.broken < self.times:
            BreaksAt.broken += 1
            raise RuntimeError("it broke")
        return super().step(actions)

    get_state = set_state = None  # type: ignore[assignment]


@pytest.mark.parametrize("resumed", [False, True])
def test_one_that_breaks_is_made_anew_and_who_waited_is_cut_at_what_it_last_saw(resumed: bool) -> None:
    BreaksAt.broken = 0
    vector = team(BreaksAt, 2, ("x=x", "y=y"), restart=True)
    vector.reset()
    vector.send(zeros(vector))
    if resumed:
        saved = vector.snapshot()
        vector = team(BreaksAt, 2, ("x=x", "y=y"), seed=9, restart=True)
        vector.restore(saved)
    before = {name: out.obs["obs"].clone() for name, out in vector.outs.items()}
    assert [out.active.tolist() for out in vector.outs.values() if out.active is not None] == [[False] * 2, [True] * 2]
    vector.send(zeros(vector))  # of the first environment, this is the move of y that breaks
    x, y = vector.outs["x"], vector.outs["y"]
    assert [x.truncated.tolist(), y.truncated.tolist()] == [[True, False]] * 2
    assert not x.terminated.any()
    assert not y.terminated.any()
    assert [x.reward.tolist(), y.reward.tolist()] == [[0.0, -0.5], [0.0, 1.0]]
    assert x.final_rows == y.final_rows == [0]
    assert x.final_obs["obs"][0].tolist() == [0.0, 0.0]  # x saw it at the first move, and waited since
    assert y.final_obs["obs"][0].tolist() == before["y"][0].tolist() == [1.0, 1.0]
    assert [x.active.tolist(), y.active.tolist()] == [[True, True], [False, False]]  # type: ignore[union-attr]
    (fault,) = vector.faults()
    assert {k: fault[k] for k in ("kind", "env", "episode", "step")} == {
        "kind": "env_failed",
        "env": 0,
        "episode": 0,
        "step": 2,
    }
    assert "it broke" in fault["error"]
    play(vector, 4)
    episodes = vector.episodes()
    assert [e.env for e in episodes] == [1, 0]  # the one that broke is not counted, its next one is
    assert not vector.faults()
    assert y.final_rows == [0]


def test_who_had_left_before_is_not_cut_again() -> None:
    class Breaks(Leaver):
        done = 0

        def step(self, actions: dict[str, Any]) -> Any:
            if self._t == 3 and not Breaks.done:
                Breaks.done = 1
                raise ValueError("now")
            return super().step(actions)

    vector = team(Breaks, 1, restart=True)
    vector.reset()
    play(vector, 4)
    early, late = vector.outs["early"], vector.outs["late"]
    assert (early.final_rows, late.final_rows) == ([], [0])
    assert late.truncated.tolist() == [True]
    assert early.truncated.tolist() == early.terminated.tolist() == [False]
    assert late.final_obs["obs"][0, 0] == 3.0


def test_what_a_step_wrote_before_it_broke_is_undone() -> None:
    """The step ends one agent, which is written, and then gives the other no mask for its next decision."""

    class Muddled(Masked):
        done = 0

        def step(self, actions: dict[str, Any]) -> Any:
            obs, rewards, terminated, truncated, infos = super().step(actions)
            if self._t == 1 and not Muddled.done:
                Muddled.done = 1
                terminated, self.agents, infos = {"late_0": True}, ["early_0"], {}
            return obs, rewards, terminated, truncated, infos

    vector = team(Muddled, 1, restart=True)
    vector.reset()
    early, late = vector.outs["early"], vector.outs["late"]
    assert early.action_mask is not None
    vector.send({"early": torch.ones(1, dtype=torch.int64), "late": torch.zeros(1, dtype=torch.int64)})
    for out in (early, late):
        assert (out.final_rows, out.truncated.tolist(), out.terminated.tolist()) == ([0], [True], [False])
        assert out.reward.tolist() == [0.0]
    assert early.final_obs["action_mask"].tolist()[0] == [False, True]
    assert "gave no action_mask; put one into every info (agent 'early_0')" in vector.faults()[0]["error"]


def test_one_that_breaks_every_time_or_at_a_reset_or_is_not_to_be_made_anew_ends_the_run() -> None:
    BreaksAt.broken = 0
    vector = team(lambda: BreaksAt(1, 99), 1, ("x=x", "y=y"), restart=True)
    vector.reset()
    with pytest.raises(DataError, match=r"raised RuntimeError: it broke, for the 6th time in a row \[its episode"):
        play(vector, 9)

    class NoReset(Turns):
        resets = 0

        def reset(self, **kwargs: Any) -> Any:
            NoReset.resets += 1
            if NoReset.resets > 3:
                raise RuntimeError("no more")
            return super().reset(**kwargs)

    vector = team(NoReset, 1, ("x=x", "y=y"), restart=True)
    vector.reset()
    with pytest.raises(DataError, match="raised RuntimeError: no more"):
        play(vector, 9)
    BreaksAt.broken = 0
    vector = team(BreaksAt, 1, ("x=x", "y=y"))
    vector.reset()
    with pytest.raises(DataError, match="raised RuntimeError: it broke"):
        play(vector, 9)
