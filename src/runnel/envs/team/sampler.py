"""The sampler of an actor whose environments have several agents: segments of each trained policy, filled in lock-step.

Consumes replies of several inference streams and produces `[T, E * A]` segments of several sample streams. It waits for room on
each sample stream (unblocked by its reader), for versions of each policy, and for the slowest reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.rng import make_rng
from runnel.core.spaces import ArraySpec
from runnel.core.state import State, WorkerEvent
from runnel.envs.sampler import episode_event
from runnel.envs.segments import SegmentWriter
from runnel.envs.team.contract import TeamVector
from runnel.envs.team.lane import PolicyLane, TeamLane


class TeamSampler:
    """Plays `vectors` in a ring, as `VecEnvSampler` does, with all policies of a vector in lock-step.

    `noise_sizes` gives, by policy, the uniform numbers that it needs for a decision; each policy has a generator of its own, so
    that a change of one leaves the noise of the others as it is. `gammas` gives the discounts of the returns that segments
    carry, `states` the recurrent state of each policy that has one.
    A step of an environment counts once, on the first stream of the first trained policy.
    """

    def __init__(
        self,
        vectors: Sequence[TeamVector],
        *,
        noise_sizes: Mapping[str, int],
        seed: int,
        name: str,
        gammas: Mapping[str, float] | None = None,
        states: Mapping[str, Mapping[str, ArraySpec]] | None = None,
    ) -> None:
        if not vectors:
            raise ConfigError("num_env_groups", 0, "a sampler needs at least one vector of environments")
        self._lanes = []
        for i, vector in enumerate(vectors):
            parts = [
                PolicyLane(
                    side,
                    vector.outs[policy],
                    noise_sizes[policy],
                    make_rng(seed, name, "noise", i, policy),
                    state=(states or {}).get(policy, {}),
                    gamma=(gammas or {}).get(policy),
                )
                for policy, side in vector.sides.items()
            ]
            self._lanes.append(TeamLane(vector, parts))
        streams = [sample.stream for sample in self._lanes[0].samples]
        self._turns = dict.fromkeys(streams, 0)
        """Which lane takes the next slot of each stream."""
        self._counts = streams[0]
        """The stream on which steps of environments count."""
        self._num_steps = 0
        self._events: list[WorkerEvent] = []

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        if any(part.ticket is not None for lane in self._lanes for part in lane.parts):
            for client in clients.values():
                client.poll()
        work, first, n = 0, self._turns[self._counts], len(self._lanes)
        for offset in range(n):
            index = (first + offset) % n
            lane = self._lanes[index]
            lane.waits = ""
            if not lane.is_open and not lane.open(writers, self._turns, index, n):
                continue
            work += self._advance(lane, clients)
            self._commit(lane, writers)
        return work

    def _advance(self, lane: TeamLane, clients: Mapping[str, InferenceClient]) -> int:
        try:
            return lane.advance(clients, one=len(self._lanes) > 1)
        except Exception:
            for part in lane.parts:
                for sample in part.samples:
                    if sample.segment is not None:
                        self._check_finite(lane, part, sample.segment)  # a NaN is the cause, whatever broke on it later
            raise

    def _commit(self, lane: TeamLane, writers: Mapping[str, SampleWriter]) -> None:
        """Hand over the segments that are full."""
        full = lane.full()
        for part, sample in full:
            num_steps = sample.num_steps * lane.vector.num_envs if sample.stream == self._counts else 0
            segment = sample.finish()
            self._check_finite(lane, part, segment)
            writers[sample.stream].commit(segment.slot, num_steps=num_steps)
            self._num_steps += num_steps
        if not full:
            return
        lane.end_round()
        self._events.extend(lane.vector.faults())
        for e in lane.vector.episodes():
            self._events.append(episode_event(e))

    def _check_finite(self, lane: TeamLane, part: PolicyLane, segment: SegmentWriter) -> None:
        bad = segment.first_bad()
        if bad is None:
            return
        field, t, row = bad
        t -= segment.burn_in
        agents = part.side.agents
        index, agent = lane.vector.index0 + row // len(agents), agents[row % len(agents)]
        step = self._num_steps + t * lane.vector.num_envs + row // len(agents)
        where = f"agent {agent!r} of environment {lane.vector.name!r} (index {index}), step {t} of its segment"
        raise NonFiniteError(field, step, f"the policy's answer to {where}" if segment.is_of_reply(field) else where)

    def waits_for(self) -> str:
        reasons = dict.fromkeys(lane.waits for lane in self._lanes if lane.waits)
        return ", ".join(reasons) or "nothing"

    def events(self) -> list[WorkerEvent]:
        events, self._events = self._events, []
        return events

    def snapshot(self) -> State:
        return {
            "turns": dict(self._turns),
            "num_steps": self._num_steps,
            "events": [dict(e) for e in self._events],
            "lanes": [lane.snapshot() for lane in self._lanes],
        }

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self._turns, self._num_steps = dict(state["turns"]), state["num_steps"]
        self._events = [dict(e) for e in state["events"]]
        for lane, saved in zip(self._lanes, state["lanes"], strict=True):
            lane.restore(saved, writers)

    def close(self) -> None:
        for lane in self._lanes:
            lane.vector.close()
