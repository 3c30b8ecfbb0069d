"""One vector of teams and the segments that its policies fill together, step by step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Slot
from runnel.core.rng import rng_state, set_rng_state
from runnel.core.routes import Side
from runnel.core.state import State
from runnel.core.worker import progressed
from runnel.envs.segments import CarriedReturns, SegmentRequests, SegmentWriter, SlotWriters
from runnel.envs.team.contract import TeamVector
from runnel.envs.vector import StepOut

Clients = Mapping[str, InferenceClient]
Writers = Mapping[str, SampleWriter]


class PolicyLane:
    """The part of one policy: its requests with their noise, its open ticket or the actions that it gave, and its segment if it
    is trained."""

    def __init__(self, side: Side, out: StepOut, noise_size: int, rng: np.random.Generator, *, gamma: float | None) -> None:
        self.side, self.route = side, side.route
        self.num_rows = len(out.reward)
        self._requests = SegmentRequests(out, noise_size, rng, {})
        self._writers = SlotWriters(out)
        self.segment: SegmentWriter | None = None
        self.ticket: int | None = None
        self.actions: Tensor | None = None
        carries = side.trains and gamma is not None
        self._returns = CarriedReturns(self.num_rows, gamma=gamma or 0.0, device=out.reward.device) if carries else None

    def bind(self, slot: Slot) -> None:
        """Fill `slot` from now on."""
        if slot.spec.sizes["B"] != self.num_rows:
            fix = f"stream {slot.spec.name!r} has {slot.spec.sizes['B']} rows, and policy {self.route.inference!r} has "
            raise ConfigError("num_envs", slot.spec.sizes["B"], f"{fix}{self.num_rows}; make them equal")
        self.segment = self._writers.begin(slot)

    def open(self, num_steps: int) -> None:
        """Begin a segment of `num_steps` steps."""
        self._requests.prepare(num_steps)
        self._requests.draw()
        if self._returns is not None and self.segment is not None:
            self._returns.begin(self.segment.slot.arrays)

    @property
    def need(self) -> int:
        """The version that must act; -1 for any."""
        return -1 if self.segment is None else self.segment.slot.header.required_version

    def ask(self, t: int, client: InferenceClient) -> bool:
        """Ask about step `t`, or look for the reply; whether the actions are there."""
        if self.actions is not None:
            return True
        if self.ticket is None:
            if self.segment is not None:
                self.segment.write_obs(t)
            answer = client.local()
            if answer is not None:
                self._take(t, answer(self._requests.rows[t]), client.version)
                return True
            self.ticket = client.submit(self._requests.rows[t], version=self.need)
        reply = client.ready(self.ticket)
        if reply is None:
            return False
        self.ticket = None
        self._take(t, reply.rows, reply.version)
        return True

    def _take(self, t: int, rows: Batch, version: int) -> None:
        if self.segment is not None:
            self.segment.write_reply(t, rows, version)
        # a copy: the memory of a reply is the client's, and others may still be thinking
        self.actions = rows["action"].clone()

    def finish(self) -> SegmentWriter:
        """All steps are there: what the segment says as a whole is written."""
        segment = self.segment
        assert segment is not None
        segment.finish()
        if self._returns is not None:
            self._returns.end(segment.slot.arrays)
        self.segment = None
        return segment

    def save(self, *, opened: bool) -> State:
        segment = None
        if self.segment is not None:
            segment = {"index": self.segment.slot.index, **(self.segment.save() if opened else {})}
        return {
            "rng": rng_state(self._requests.rng),
            "noise": self._requests.save() if opened else None,
            "ticket": self.ticket,
            "actions": None if self.actions is None else self.actions.clone(),
            "returns": None if self._returns is None else self._returns.now.clone(),
            "segment": segment,
        }

    def load(self, state: State, writers: Writers, *, num_steps: int) -> None:
        """Undo `save`; `num_steps` is 0 where no segment was opened."""
        set_rng_state(self._requests.rng, state["rng"])
        self.ticket, self.segment = state["ticket"], None
        self.actions = None if state["actions"] is None else torch.as_tensor(state["actions"])
        if self._returns is not None:
            self._returns.now.copy_(torch.as_tensor(state["returns"]))
        if state["segment"] is not None:
            self.bind(writers[self.route.samples].reclaim(state["segment"]["index"]))
        if num_steps:
            self._requests.prepare(num_steps)
            self._requests.load(state["noise"])
            if self.segment is not None:
                self.segment.load(state["segment"])


class TeamLane:
    """A vector and the parts of its policies. They open, step and end their segments together."""

    def __init__(self, vector: TeamVector, parts: list[PolicyLane]) -> None:
        self.vector, self.parts = vector, parts
        self.trained = [part for part in parts if part.side.trains]
        self.num_steps = 0
        """Steps of the open segments; 0 while there are none."""
        self.t = 0
        self.started = False
        self.waits = ""

    def reserve(self, writers: Writers) -> bool:
        """Get a slot of every stream and open them. A slot that is there already is kept while others are missing.

        Slots are taken in one fixed order. So of several actors that need the same streams one always has all its slots.
        """
        for part in self.trained:
            if part.segment is None:
                writer = writers[part.route.samples]
                slot = writer.reserve()
                if slot is None:
                    self.waits = f"room on stream {writer.spec.name!r}"
                    return False
                part.bind(slot)
        self._open()
        return True

    def _open(self) -> None:
        if not self.started:
            self.vector.reset()
            self.started = True
        lengths = [part.segment.num_steps for part in self.trained if part.segment is not None]
        if len(set(lengths)) > 1:
            raise ConfigError("num_steps", lengths, "all streams of a team have segments of one length; make them equal")
        self.num_steps, self.t = lengths[0], 0
        for part in self.parts:
            part.open(self.num_steps)

    def advance(self, clients: Clients, *, one: bool) -> int:
        """Play on until the segments are full or a reply is missing; with `one`, a single step. Returns the steps played, or 1
        if there was at least a request to send."""
        for part in self.parts:
            if not clients[part.route.inference].sync(part.need):
                need = f"version {part.need}" if part.need >= 0 else "a first version"
                self.waits = f"{need} of policy {part.route.inference!r}"
                return 0
        before, asked = self.t, any(part.ticket is None and part.actions is None for part in self.parts)
        while self.t < self.num_steps:
            # all are asked before anybody is waited for
            late = [part for part in self.parts if not part.ask(self.t, clients[part.route.inference])]
            if late:
                self.waits = f"a reply of {late[0].route.inference!r}"
                break
            self._step()
            if one:
                break
        return (self.t - before) * self.vector.num_envs or int(asked)

    def _step(self) -> None:
        self.vector.send({part.route.inference: part.actions for part in self.parts if part.actions is not None})
        self.vector.recv()
        progressed()
        for part in self.parts:
            part.actions = None
            if part.segment is not None:
                part.segment.write_step(self.t)
        self.t += 1

    @property
    def full(self) -> bool:
        return 0 < self.num_steps == self.t

    def snapshot(self) -> State:
        return {
            "started": self.started,
            "num_steps": self.num_steps,
            "t": self.t,
            "vector": self.vector.snapshot() if self.started else None,
            "parts": {part.route.inference: part.save(opened=self.num_steps > 0) for part in self.parts},
        }

    def restore(self, state: State, writers: Writers) -> None:
        self.started, self.num_steps, self.t = state["started"], state["num_steps"], state["t"]
        if self.started:
            self.vector.restore(state["vector"])
        for part in self.parts:
            part.load(state["parts"][part.route.inference], writers, num_steps=self.num_steps)
