"""The sampler of an actor whose environments have several agents: a segment for each trained policy, filled in lock-step.

Consumes replies of several inference streams and produces `[T, E * A]` segments of several sample streams. It waits for room on
each sample stream (unblocked by its reader), for versions of each policy, and for the slowest reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.rng import make_rng
from runnel.core.state import State, WorkerEvent
from runnel.envs.segments import SegmentWriter
from runnel.envs.team.contract import TeamVector
from runnel.envs.team.lane import PolicyLane, TeamLane


class TeamSampler:
    """Plays `vectors` in a ring, as `VecEnvSampler` does, with all policies of a vector in lock-step.

    `noise_sizes` gives, by policy, the uniform numbers that it needs for a decision; each policy has a generator of its own, so
    that a change of one leaves the noise of the others as it is. `gammas` gives the discounts of the returns that segments
    carry.
    A step of an environment counts once, on the stream of the first trained policy.
    """

    def __init__(
        self,
        vectors: Sequence[TeamVector],
        *,
        noise_sizes: Mapping[str, int],
        seed: int,
        name: str,
        gammas: Mapping[str, float] | None = None,
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
                    gamma=(gammas or {}).get(policy),
                )
                for policy, side in vector.sides.items()
            ]
            self._lanes.append(TeamLane(vector, parts))
        self._turn = 0
        self._num_steps = 0
        self._events: list[WorkerEvent] = []

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        if any(part.ticket is not None for lane in self._lanes for part in lane.parts):
            for client in clients.values():
                client.poll()
        work, first, n = 0, self._turn, len(self._lanes)
        for offset in range(n):
            index = (first + offset) % n
            lane = self._lanes[index]
            lane.waits = ""
            if not lane.num_steps and not self._reserve(lane, index, writers):
                continue
            work += self._advance(lane, clients)
            if lane.full:
                self._commit(lane, writers)
        return work

    def _reserve(self, lane: TeamLane, index: int, writers: Mapping[str, SampleWriter]) -> bool:
        if index != self._turn:
            lane.waits = "its turn in the ring"
            return False
        if not lane.reserve(writers):
            return False
        self._turn = (self._turn + 1) % len(self._lanes)
        return True

    def _advance(self, lane: TeamLane, clients: Mapping[str, InferenceClient]) -> int:
        try:
            return lane.advance(clients, one=len(self._lanes) > 1)
        except Exception:
            for part in lane.trained:
                if part.segment is not None:
                    self._check_finite(lane, part, part.segment)  # a NaN upstream is the cause, whatever broke on it later
            raise

    def _commit(self, lane: TeamLane, writers: Mapping[str, SampleWriter]) -> None:
        num_steps = lane.num_steps * lane.vector.num_envs
        for i, part in enumerate(lane.trained):
            segment = part.finish()
            self._check_finite(lane, part, segment)
            writers[part.route.samples].commit(segment.slot, num_steps=num_steps if i == 0 else 0)
        lane.num_steps = 0
        self._num_steps += num_steps
        self._events.extend(lane.vector.faults())
        for e in lane.vector.episodes():
            event = {"kind": "episode", "return": e.total, "length": e.length, "env": e.env, "by_policy": dict(e.by_policy)}
            self._events.append(event)

    def _check_finite(self, lane: TeamLane, part: PolicyLane, segment: SegmentWriter) -> None:
        bad = segment.first_bad()
        if bad is None:
            return
        field, t, row = bad
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
            "turn": self._turn,
            "num_steps": self._num_steps,
            "events": [dict(e) for e in self._events],
            "lanes": [lane.snapshot() for lane in self._lanes],
        }

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self._turn, self._num_steps = state["turn"], state["num_steps"]
        self._events = [dict(e) for e in state["events"]]
        for lane, saved in zip(self._lanes, state["lanes"], strict=True):
            lane.restore(saved, writers)

    def close(self) -> None:
        for lane in self._lanes:
            lane.vector.close()
