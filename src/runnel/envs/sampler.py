"""The sampler of an environment actor: a ring of vectors that fills trajectory segments.

Consumes policy replies (inference stream) and produces `[T, B]` segments (sample stream). It waits for room on the sample
stream (unblocked by the reader), for a policy version (unblocked by the trainer's publication) and for replies (unblocked
by the policy worker); while one group of the ring waits for its reply or its environments, the others step. An episode goes on
across segments.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.evaluation import AgentRoute
from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.contracts.tasks import Draw, TaskSource
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.records import Batch, Slot
from runnel.core.rng import make_rng, rng_state, set_rng_state
from runnel.core.routes import only_stream, route
from runnel.core.spaces import ArraySpec
from runnel.core.state import State, WorkerEvent
from runnel.core.trajectories import TASK_ID, TASK_PARAMS
from runnel.core.worker import progressed
from runnel.envs.segments import CarriedSums, SegmentRequests, SegmentWriter, SlotWriters, check_rows, task_returns
from runnel.envs.vector import Episode, StepOut, VectorEnv
from runnel.envs.vector.contract import BEGUN
from runnel.envs.vector.cpu_base import CpuVector

AGENT = "agent"
_NAP_S, _PATIENCE_S = 5e-5, 1.0
"""Pause between two looks at the environments, and the time after which the one that began first is waited for."""


def episode_event(e: Episode) -> WorkerEvent:
    """A finished episode, as the ledger takes it."""
    event = {"kind": "episode", "return": e.total, "length": e.length, "env": e.env}
    return event | {name: dict(found) for name in ("by_policy", "channels", "statistics") if (found := getattr(e, name))}


def give_tasks(out: StepOut, source: TaskSource, sequence: int, history: Mapping[str, Tensor]) -> None:
    """Write into `out.next_task` what the episodes of each row play that begin in segment number `sequence`."""
    rows, ahead = out.next_task[TASK_ID].shape
    draws = (Draw(sequence, attempt, row, history) for row in range(rows) for attempt in range(ahead))
    chosen = [source.next(draw) for draw in draws]
    out.next_task[TASK_ID].copy_(torch.tensor([task.id for task in chosen]).view(rows, ahead))
    params = torch.from_numpy(np.stack([task.data["task"] for task in chosen]))
    out.next_task[TASK_PARAMS].copy_(params.view(rows, ahead, -1))
    out.next_task[BEGUN].zero_()


class EnvGroup:
    """One vector of the ring with the segment it fills: its slot, its open ticket, its own noise, the policy's state."""

    def __init__(
        self,
        vector: VectorEnv,
        noise_size: int,
        rng: np.random.Generator,
        *,
        state: Mapping[str, ArraySpec],
        carried: Mapping[str, float],
        source: TaskSource | None,
    ) -> None:
        self.vector, self._source = vector, source
        self.segment: SegmentWriter
        self.is_open = False
        """Whether `segment` is being filled."""
        self.ticket: int | None = None
        self.sent = False
        self.synced = False
        self.started = False
        self.waits = ""
        self._writers = SlotWriters(vector.out)
        device = vector.out.reward.device
        self._state = {
            k: torch.zeros(vector.num_envs, *leaf.shape, dtype=leaf.dtype, device=device) for k, leaf in state.items()
        }
        self._requests = SegmentRequests(vector.out, noise_size, rng, self._state)
        self._sums = CarriedSums(vector.num_envs, carried, device=device)
        self._task_returns = task_returns(vector.num_envs, source, device=device)

    def open(self, slot: Slot) -> None:
        """Begin a segment in `slot`."""
        if self._source is None:
            self._start()
        self._bind(slot)
        for key, now in self._state.items():
            slot.arrays[key].copy_(now, non_blocking=True)
        self._sums.begin(slot.arrays)
        self._task_returns.begin(slot.arrays)
        self.synced = False
        self._requests.draw()

    def _start(self) -> None:
        if not self.started:
            self.vector.reset()
            self.started = True

    def _bind(self, slot: Slot) -> None:
        check_rows(slot.spec, self.vector.num_envs)
        self.segment = self._writers.begin(slot)
        self.is_open = True
        self._requests.prepare(slot.spec.sizes["T"])

    def advance(self, client: InferenceClient, *, one: bool) -> int:
        """Play on until the segment is full (`full`), or a reply or the environments' step is not there yet; with `one`, start
        at most one step of the environments."""
        segment = self.segment
        need = segment.slot.header.required_version
        if not self.synced and not client.sync(need):
            self.waits = f"policy version {need}" if need >= 0 else "a first policy version"
            return 0
        if not self.synced and self._source is not None:
            history = client.constants(need)
            if history is None:
                self.waits = f"the history of tasks of version {max(need, 0)}"
                return 0
            give_tasks(self.vector.out, self._source, segment.slot.header.sequence, history)
            self._start()
        self.synced = True
        act = client.local()
        before, asked = len(segment.versions), 0
        received = 0
        while len(segment.versions) < segment.num_steps or self.sent:
            if self.sent:
                if not self.vector.ready():
                    self.waits = "its environments"
                    break
                self.receive()
                received = 1
                continue
            if one and len(segment.versions) > before:
                break
            if act is not None:
                t = len(segment.versions)
                segment.write_obs(t)
                self._act(t, act(self._requests.rows[t]), client.version)
                if one:
                    break
            else:
                asked = int(self.ticket is None)
                if not self._ask(client, need):
                    self.waits = "a reply of the policy"
                    break
        return (len(segment.versions) - before) * segment.num_envs or asked or received

    def _ask(self, client: InferenceClient, need: int) -> bool:
        """Send a request, or act on its reply; False while there is none."""
        t = len(self.segment.versions)
        if self.ticket is None:
            self.segment.write_obs(t)
            self.ticket = client.submit(self._requests.rows[t], version=need)
        reply = client.ready(self.ticket)
        if reply is None:
            return False
        self.ticket = None
        self._act(t, reply.rows, reply.version)
        return True

    def _act(self, t: int, rows: Batch, version: int) -> None:
        self.segment.write_reply(t, rows, version)
        for key, now in self._state.items():
            now.copy_(rows[key])
        self.vector.send(rows["action"])
        self.sent = True

    def receive(self) -> None:
        """Record the step of the environments; waits for it."""
        out = self.vector.recv()
        progressed()
        self.sent = False
        self.segment.write_step(len(self.segment.versions) - 1)
        if self._state:
            self._forget(out)

    def _forget(self, out: StepOut) -> None:
        """The policy's state is zero where an episode just ended."""
        for now in self._state.values():
            if out.final_rows is None:
                over = (out.terminated | out.truncated).view(-1, *([1] * (now.dim() - 1)))
                now.masked_fill_(over, 0.0)
            elif out.final_rows:
                now[out.final_rows] = 0.0

    @property
    def full(self) -> bool:
        return self.is_open and not self.sent and len(self.segment.versions) == self.segment.num_steps

    def finish(self) -> SegmentWriter:
        """Complete the segment, whose steps are all there."""
        self.segment.finish()
        self._sums.end(self.segment.slot.arrays)
        self._task_returns.end(self.segment.slot.arrays)
        return self.segment

    def snapshot(self) -> State:
        if self.sent:
            self.receive()
        state: State = {"started": self.started, "rng": rng_state(self._requests.rng), "ticket": self.ticket, "segment": None}
        state["state"] = {k: x.clone() for k, x in self._state.items()}
        state["returns"] = self._sums.save()
        state["task_returns"] = self._task_returns.save()
        if self.started:
            state["vector"] = self.vector.snapshot()
        if self.is_open:
            state["segment"] = {
                "index": self.segment.slot.index,
                "synced": self.synced,
                "noise": self._requests.save(),
                **self.segment.save(),
            }
        return state

    def restore(self, state: State, writer: SampleWriter) -> None:
        self.started, self.ticket, self.is_open, self.sent = state["started"], state["ticket"], False, False
        set_rng_state(self._requests.rng, state["rng"])
        for key, now in self._state.items():
            now.copy_(torch.as_tensor(state["state"][key]))
        self._sums.load(state.get("returns"))
        self._task_returns.load(state.get("task_returns"))
        if self.started:
            self.vector.restore(state["vector"])
        saved = state["segment"]
        if saved is not None:
            self._bind(writer.reclaim(saved["index"]))
            self.synced = saved["synced"]
            self._requests.load(saved["noise"])
            self.segment.load(saved)


class VecEnvSampler:
    """Plays `vectors` in a ring. Lanes take their slots strictly in turn, so the order of segments never depends on timing.

    `noise_size` is the number of uniform numbers a policy needs per decision; they travel with the request (`noise`
    `[B, noise_size]`), drawn from a generator that belongs to the group. `state` names its recurrent state, which travels with
    requests and replies. `carried` are the channels whose sums so far segments carry, with their discounts (`CarriedSums`).
    `source` says what episodes play that begin within a segment, row by row, where the vectors play given tasks.
    """

    def __init__(
        self,
        vectors: Sequence[VectorEnv],
        *,
        routes: Sequence[AgentRoute],
        noise_size: int,
        seed: int,
        name: str,
        state: Mapping[str, ArraySpec] | None = None,
        carried: Mapping[str, float] | None = None,
        source: TaskSource | None = None,
    ) -> None:
        if not vectors:
            raise ConfigError("num_env_groups", 0, "a sampler needs at least one vector of environments")
        found = route(routes, AGENT)
        self._inference, self._stream = found.inference, only_stream(found)
        rngs = [make_rng(seed, name, "noise", i) for i in range(len(vectors))]
        self._groups = [
            EnvGroup(v, noise_size, rng, state=state or {}, carried=carried or {}, source=source)
            for v, rng in zip(vectors, rngs, strict=True)
        ]
        self._turn = 0
        self._num_steps = 0
        self._events: list[WorkerEvent] = []

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        client, writer = clients[self._inference], writers[self._stream]
        if any(group.ticket is not None for group in self._groups):
            client.poll()
        work, more = self._round(client, writer)
        while more:
            done, more = self._round(client, writer)
            work += done
        return work or self._wait_for_environments()

    def _round(self, client: InferenceClient, writer: SampleWriter) -> tuple[int, bool]:
        """Move each group in turn. Returns the work done, and whether another round is useful.

        With several groups, one group's environments step while the policy acts for the next group. The round in which a
        segment was finished is the last.
        """
        work, first, n, more = 0, self._turn, len(self._groups), len(self._groups) > 1
        for offset in range(n):
            index = (first + offset) % n
            group = self._groups[index]
            group.waits = ""
            if not group.is_open and not self._reserve(group, index, writer):
                continue
            work += self._advance(group, client)
            if group.full:
                self._commit(group, writer)
                more = False
        return work, more and work > 0 and client.local() is not None

    def _wait_for_environments(self) -> int:
        """Nothing else to do: wait for the vector that is done first, or, after a second, for the one that began first."""
        groups = [self._groups[(self._turn + offset) % len(self._groups)] for offset in range(len(self._groups))]
        waiting = [group for group in groups if group.sent]
        if not waiting:
            return 0
        first, deadline = waiting[0], time.monotonic() + _PATIENCE_S
        while len(waiting) > 1 and time.monotonic() < deadline:
            done = next((group for group in waiting if group.vector.ready()), None)
            if done is not None:
                first = done
                break
            time.sleep(_NAP_S)
        try:
            first.receive()
        except Exception:
            self._check_finite(first)  # a NaN upstream is the cause, whatever broke on it later
            raise
        return first.vector.num_envs

    def _reserve(self, group: EnvGroup, index: int, writer: SampleWriter) -> bool:
        if index != self._turn:
            group.waits = "its turn in the ring"
            return False
        slot = writer.reserve()
        if slot is None:
            group.waits = f"room on stream {writer.spec.name!r}"
            return False
        group.open(slot)
        self._turn = (self._turn + 1) % len(self._groups)
        return True

    def _advance(self, group: EnvGroup, client: InferenceClient) -> int:
        try:
            return group.advance(client, one=len(self._groups) > 1)
        except Exception:
            self._check_finite(group)  # a NaN upstream is the cause, whatever broke on it later
            raise

    def _commit(self, group: EnvGroup, writer: SampleWriter) -> None:
        segment = group.finish()
        self._check_finite(group)
        num_steps = segment.num_steps * segment.num_envs
        writer.commit(segment.slot, num_steps=num_steps)
        self._num_steps += num_steps
        group.is_open = False
        self._events.extend(group.vector.faults())
        for e in group.vector.episodes():
            self._events.append(episode_event(e))

    def _check_finite(self, group: EnvGroup) -> None:
        bad = group.segment.first_bad()
        if bad is not None:
            field, t, row = bad
            step = self._num_steps + t * group.segment.num_envs + row
            index = group.vector.index0 + row
            where = f"environment {group.vector.name!r} (index {index}), step {t} of its segment"
            if group.segment.is_of_reply(field):
                raise NonFiniteError(field, step, f"the policy's answer to {where}")
            check = group.vector.check if isinstance(group.vector, CpuVector) else ""
            raise NonFiniteError(field, step, f"{where} (`{check}` may explain it)" if check else where)

    def waits_for(self) -> str:
        reasons = dict.fromkeys(group.waits for group in self._groups if group.waits)
        return ", ".join(reasons) or "nothing"

    def events(self) -> list[WorkerEvent]:
        events, self._events = self._events, []
        return events

    def snapshot(self) -> State:
        return {
            "turn": self._turn,
            "num_steps": self._num_steps,
            "events": [dict(e) for e in self._events],
            "lanes": [group.snapshot() for group in self._groups],
        }

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self._turn, self._num_steps = state["turn"], state["num_steps"]
        self._events = [dict(e) for e in state["events"]]
        for group, saved in zip(self._groups, state["lanes"], strict=True):
            group.restore(saved, writers[self._stream])

    def close(self) -> None:
        for group in self._groups:
            group.vector.close()
