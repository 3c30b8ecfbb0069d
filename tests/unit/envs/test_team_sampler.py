"""The sampler of teams: what its segments hold, slots of several streams, and a resume that goes on bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from fake_streams import FakeClient, FakeWriter, by_noise
from team_envs import Leaver, Turns

from runnel.core.contracts.evaluation import AgentRoute, SampleRoute
from runnel.core.contracts.samples import Sampler
from runnel.core.errors import NonFiniteError
from runnel.core.records import Batch
from runnel.core.routes import sides_of
from runnel.core.spaces import ArraySpec
from runnel.core.trajectories import trajectory_stream
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.sampler import TeamSampler
from runnel.envs.team.serial import SerialTeam

EARLY = AgentRoute("early_.*", "early", (SampleRoute("early"),))
LEAVERS = (EARLY, AgentRoute("late_.*", "late", (SampleRoute("late"),)))
AGAINST_FIXED = (EARLY, AgentRoute("late_.*", "late", ()))
TURNS = (AgentRoute(".*", "shared", (SampleRoute("shared"),)),)


RECURRENT = {"state/h": ArraySpec((2,))}
TWO_STREAMS = (AgentRoute("early_.*", "early", (SampleRoute("early", 2), SampleRoute("long", 6))), LEAVERS[1])
WARM = (AgentRoute("early_.*", "early", (SampleRoute("early", 3, burn_in=2), SampleRoute("long", 6))), LEAVERS[1])


def counting(rows: Batch) -> Batch:
    """A recurrent policy whose state counts its own decisions since the episode began."""
    return Batch(by_noise(rows) | {"state/h": rows["state/h"] + 1.0})


class Play:
    """A sampler with the streams and clients that it needs."""

    def __init__(
        self,
        make: Callable[[], Any],
        routes: tuple[AgentRoute, ...],
        *,
        num_envs: int = 2,
        num_steps: int = 4,
        lanes: int = 1,
        capacity: int = 4,
        delay: int = 0,
        direct: bool = False,
        seed: int = 1,
        state: dict[str, ArraySpec] | None = None,
    ) -> None:
        self.sides = sides_of(routes, ParallelEnv(make(), "probe").spec())
        vectors = [
            SerialTeam(make, num_envs, sides=self.sides, seed=seed, index0=i * num_envs, name="toy") for i in range(lanes)
        ]
        self.sampler = TeamSampler(
            vectors,
            noise_sizes=dict.fromkeys(self.sides, 1),
            seed=seed,
            name="a",
            gammas=dict.fromkeys(self.sides, 0.9),
            states=dict.fromkeys(self.sides, state or {}),
        )
        policy = counting if state else by_noise
        self.clients = {name: FakeClient(policy, delay=delay * i, direct=direct) for i, name in enumerate(self.sides, start=1)}
        self.writers = {}
        for side in self.sides.values():
            rows = num_envs * len(side.agents)
            for sample in side.route.samples:
                self.writers[sample.stream] = FakeWriter(
                    trajectory_stream(
                        side.spec,
                        num_steps=sample.num_steps or num_steps,
                        num_envs=rows,
                        name=sample.stream,
                        burn_in=sample.burn_in,
                        state=state,
                        active=True,
                        carried=("rewards/env",),
                        unit_rows=len(side.agents),
                        capacity=capacity,
                    )
                )

    def step(self) -> int:
        return self.sampler.step(self.clients, self.writers)  # type: ignore[arg-type]

    def until(self, num_segments: int) -> Play:
        for _ in range(10_000):
            if all(len(w.committed) >= num_segments for w in self.writers.values()):
                return self
            self.step()
        raise AssertionError(self.sampler.waits_for())

    def arrays(self, stream: str) -> list[Batch]:
        return [arrays for _, arrays in self.writers[stream].committed]


def release(play: Play, index: int) -> None:
    """Give back a slot of `late` that the test had taken."""
    slot = play.writers["late"].reclaim(index)
    slot.header.used = {"F": 0}
    play.writers["late"].commit(slot, num_steps=0)


def equal(left: list[Batch], right: list[Batch]) -> bool:
    return len(left) == len(right) and all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(left, right, strict=True)
    )


def test_it_is_a_sampler() -> None:
    assert isinstance(Play(Leaver, LEAVERS).sampler, Sampler)


def test_a_segment_holds_who_decides_and_ends_and_rewards_of_the_silent_are_zero() -> None:
    play = Play(Leaver, LEAVERS, num_envs=1, num_steps=7).until(1)
    early, late = play.arrays("early")[0], play.arrays("late")[0]
    assert early["active"].flatten().tolist() == [True, True, False, False, False, True, True, False]
    assert early["terminated"].flatten().tolist() == [False, True, False, False, False, False, True]
    assert early["rewards/env"].flatten()[2:5].tolist() == [0.0, 0.0, 0.0]
    assert late["active"].all()
    assert late["truncated"].flatten().tolist() == [False] * 4 + [True, False, False]
    assert early["final_index"].tolist() == [1, 6]
    assert late["final_index"].tolist() == [4]
    assert late["final_obs"][0, 0] == 5.0


def test_rows_of_one_policy_are_environment_major_and_the_waiting_one_is_paid_where_it_waits() -> None:
    play = Play(Turns, TURNS, num_envs=2, num_steps=4).until(1)
    (arrays,) = play.arrays("shared")
    assert arrays["active"][:4].tolist() == [[True, False, True, False], [False, True, False, True]] * 2
    assert arrays["rewards/env"].tolist() == [[1.0, -0.5, 1.0, -0.5], [-0.5, 1.0, -0.5, 1.0]] * 2
    assert arrays["terminated"].tolist() == [[False] * 4] * 3 + [[True] * 4]


def test_steps_count_once_and_episodes_tell_the_return_of_each_policy() -> None:
    play = Play(Leaver, LEAVERS, num_envs=2, num_steps=5).until(1)
    assert [w.committed[0][0].num_steps for w in play.writers.values()] == [10, 0]
    events = play.sampler.events()
    assert [e["env"] for e in events] == [0, 1]
    for event in events:
        assert event["return"] == pytest.approx((event["by_policy"]["early"] + event["by_policy"]["late"]) / 2)


def test_a_policy_that_is_not_trained_acts_and_writes_nothing() -> None:
    play = Play(Leaver, AGAINST_FIXED, num_steps=5).until(2)
    assert set(play.writers) == {"early"}
    event = play.sampler.events()[0]
    assert event["return"] == event["by_policy"]["early"]


@pytest.mark.parametrize("routes", [LEAVERS, AGAINST_FIXED])
def test_replies_late_or_at_once_or_beside_the_sampler_make_the_same_segments(routes: tuple[AgentRoute, ...]) -> None:
    reference = Play(Leaver, routes).until(3)
    for other in (Play(Leaver, routes, delay=2), Play(Leaver, routes, direct=True)):
        assert equal(reference.arrays("early")[:3], other.until(3).arrays("early")[:3])


def test_a_lane_that_got_one_slot_keeps_it_and_waits_for_the_other() -> None:
    play = Play(Leaver, LEAVERS, capacity=1)
    blocked = play.writers["late"].reserve()
    assert blocked is not None
    assert play.step() == 0
    assert play.sampler.waits_for() == "room on stream 'late'"
    assert play.step() == 0
    assert len(play.writers["early"].reserved) == 1
    release(play, blocked.index)
    assert play.step() > 0


@pytest.mark.parametrize(
    ("make", "routes"),
    [(Leaver, LEAVERS), (Leaver, AGAINST_FIXED), (Turns, TURNS), (Leaver, TWO_STREAMS), (Leaver, WARM)],
)
@pytest.mark.parametrize("polls", [0, 1, 2, 5, 6, 7, 11])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_sampler_goes_on_bit_for_bit(make: Callable[[], Any], routes: tuple[AgentRoute, ...], polls: int, lanes: int) -> None:
    state = RECURRENT if routes is WARM else None
    num_steps = 6 if routes in (TWO_STREAMS, WARM) else 3
    first = Play(make, routes, delay=1, lanes=lanes, num_steps=num_steps, state=state)
    for _ in range(polls):
        first.step()
    saved = first.sampler.snapshot()
    second = Play(make, routes, delay=1, lanes=lanes, num_steps=num_steps, state=state)
    second.clients = {name: client.twin() for name, client in first.clients.items()}
    second.writers = {name: writer.twin() for name, writer in first.writers.items()}
    before = {name: len(writer.committed) for name, writer in first.writers.items()}
    second.sampler.restore(saved, second.writers)  # type: ignore[arg-type]
    first.until(max(before.values()) + 4)
    second.until(4)
    for name in first.writers:
        assert equal(first.arrays(name)[before[name] :][:4], second.arrays(name)[:4])
    assert [h for h, _ in second.writers[name].committed[:4]] == [
        h for h, _ in first.writers[name].committed[before[name] :][:4]
    ]


def test_a_slot_that_waits_for_others_survives_a_resume() -> None:
    first = Play(Leaver, LEAVERS, capacity=1)
    blocked = first.writers["late"].reserve()
    assert blocked is not None
    first.step()
    second = Play(Leaver, LEAVERS, capacity=1)
    second.writers = {name: writer.twin() for name, writer in first.writers.items()}
    second.sampler.restore(first.sampler.snapshot(), second.writers)  # type: ignore[arg-type]
    for play in (first, second):
        release(play, blocked.index)
        play.until(2)
    assert equal(first.arrays("early")[:2], second.arrays("early")[:2])


class Broken(Leaver):
    """A reward that is no number, for one agent, at step 3."""

    def step(self, actions: dict[str, Any]) -> Any:
        obs, rewards, *rest = super().step(actions)
        if self._t == 3:
            rewards["late_0"] = float("nan")
        return obs, rewards, *rest


def test_a_nan_names_the_agent() -> None:
    play = Play(Broken, LEAVERS, num_envs=1)
    with pytest.raises(NonFiniteError, match=r"agent 'late_0' of environment 'toy' \(index 0\), step 2 of its segment"):
        play.until(1)


def test_noise_of_a_row_does_not_depend_on_who_is_active() -> None:
    noise = {}
    for leaves in (1, 4):
        play = Play(lambda leaves=leaves: Leaver(leaves), LEAVERS, num_envs=1)
        play.until(2)
        noise[leaves] = torch.stack([a["logprob"] for a in play.arrays("early")])
    assert np.array_equal(noise[1], noise[4])


def joined(segments: list[Batch], key: str, burn_in: int = 0) -> torch.Tensor:
    """What segments of one stream say of their own steps, one after the other. `[T, ...]`"""
    steps = len(segments[0]["action"])
    return torch.cat([s[key][burn_in:steps] for s in segments])


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("delay", [0, 1])
def test_two_streams_of_one_policy_hold_the_same_steps_in_segments_of_their_own_length(lanes: int, delay: int) -> None:
    play = Play(Leaver, TWO_STREAMS, num_steps=6, lanes=lanes, delay=delay).until(6)
    plain = Play(Leaver, LEAVERS, num_steps=6, lanes=lanes, delay=delay).until(4)
    for lane in range(lanes):
        short, long = play.arrays("early")[lane::lanes][:6], play.arrays("long")[lane::lanes][:2]
        assert {len(s["action"]) for s in short} == {2}
        assert {len(s["action"]) for s in long} == {6}
        for key in ("obs", "action", "logprob", "rewards/env", "terminated", "truncated", "active"):
            assert torch.equal(joined(short[: 3 * len(long)], key), joined(long, key)), key
            assert torch.equal(joined(long, key), joined(plain.arrays("early")[lane::lanes][: len(long)], key)), key
    counted = {name: sum(header.num_steps for header, _ in w.committed) for name, w in play.writers.items()}
    assert counted["long"] == counted["late"] == 0
    assert counted["early"] == 2 * 2 * len(play.arrays("early"))


def test_a_segment_with_burn_in_begins_with_the_last_steps_of_the_one_before_and_the_state_before_those() -> None:
    play = Play(Leaver, WARM, num_envs=1, num_steps=6, state=RECURRENT).until(6)
    short, long = play.arrays("early"), play.arrays("long")
    assert not short[0]["active"][:2].any()
    assert not short[0]["state/h"].any()
    for before, after in pairwise(short):
        for key in ("obs", "action", "logprob", "rewards/env", "terminated", "active"):
            assert torch.equal(after[key][:2], before[key][3:5]), key
    for key in ("obs", "action", "active"):
        assert torch.equal(joined(short[:6], key, 2), joined(long[:3], key)), key
    # the agent decides at steps 0 and 1 of every five; the state before a step counts its decisions since the episode began
    decisions = [0, 1, 0, 0, 0] * 10
    assert [s["state/h"][0, 0].item() for s in short[1:6]] == [decisions[3 * k - 2] for k in range(1, 6)]
    assert [s["state/h"][0, 0].item() for s in long[:3]] == [decisions[6 * k] for k in range(3)]
    assert all(header.version_min == 0 for header, _ in play.writers["early"].committed)


def test_one_who_waits_keeps_its_state_and_whose_episode_ends_begins_with_zeros() -> None:
    play = Play(Turns, TURNS, num_envs=1, num_steps=1, state=RECURRENT).until(6)
    # x moves at steps 0 and 2, y at 1 and 3, then the episode is over
    assert [s["state/h"][:, 0].tolist() for s in play.arrays("shared")[:6]] == [[0, 0], [1, 0], [1, 1], [2, 1], [0, 0], [1, 0]]
