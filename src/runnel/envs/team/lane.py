"""One vector of teams and the segments that its policies fill together, step by step."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import SampleWriter
from runnel.core.records import Batch
from runnel.core.rng import rng_state, set_rng_state
from runnel.core.routes import Side
from runnel.core.spaces import ArraySpec
from runnel.core.state import State
from runnel.core.trajectories import own_steps
from runnel.core.worker import progressed
from runnel.envs.segments import SegmentRequests
from runnel.envs.team.contract import TeamVector
from runnel.envs.team.samples import SampleLane
from runnel.envs.vector import StepOut

Clients = Mapping[str, InferenceClient]
Writers = Mapping[str, SampleWriter]


class PolicyLane:
    """The part of one policy: its requests with their noise, its recurrent state, its open ticket or the actions that it gave,
    and a segment of each stream that it writes.

    The state of a row changes with its decisions alone, and is zero where an episode of its agent ended.
    """

    def __init__(
        self,
        side: Side,
        out: StepOut,
        noise_size: int,
        rng: np.random.Generator,
        *,
        state: Mapping[str, ArraySpec],
        gamma: float | None,
    ) -> None:
        self.side, self.route, self._out = side, side.route, out
        self._state = {k: torch.zeros(len(out.reward), *leaf.shape, dtype=leaf.dtype) for k, leaf in state.items()}
        self._requests = SegmentRequests(out, noise_size, rng, self._state)
        self.samples = [SampleLane(sample, out, self._state, gamma=gamma) for sample in self.route.samples]
        self.ticket: int | None = None
        self.actions: Tensor | None = None

    def draw(self, num_steps: int) -> None:
        """Noise for the next `num_steps` steps."""
        self._requests.prepare(num_steps)
        self._requests.draw()

    @property
    def need(self) -> int:
        """The version that must act; -1 for any."""
        return max((sample.need for sample in self.samples), default=-1)

    def ask(self, t: int, client: InferenceClient) -> bool:
        """Ask about step `t`, or look for the reply; whether the actions are there."""
        if self.actions is not None:
            return True
        if self.ticket is None:
            for sample in self.samples:
                sample.ask()
            answer = client.local()
            if answer is not None:
                self._take(answer(self._requests.rows[t]), client.version)
                return True
            self.ticket = client.submit(self._requests.rows[t], version=self.need)
        reply = client.ready(self.ticket)
        if reply is None:
            return False
        self.ticket = None
        self._take(reply.rows, reply.version)
        return True

    def _take(self, rows: Batch, version: int) -> None:
        for sample in self.samples:
            sample.answer(rows, version)
        for key, now in self._state.items():
            now.copy_(torch.where(_like(self._out.active, now), rows[key], now))
        # a copy: the memory of a reply is the client's, and others may still be thinking
        self.actions = rows["action"].clone()

    def step(self) -> None:
        """The environments have taken their step."""
        self.actions = None
        for sample in self.samples:
            sample.step()
        for now in self._state.values():
            now.masked_fill_(_like(self._out.terminated | self._out.truncated, now), 0.0)

    def save(self, *, drawn: bool) -> State:
        return {
            "rng": rng_state(self._requests.rng),
            "noise": self._requests.save() if drawn else None,
            "ticket": self.ticket,
            "actions": None if self.actions is None else self.actions.clone(),
            "state": {key: x.clone() for key, x in self._state.items()},
            "samples": {sample.stream: sample.save() for sample in self.samples},
        }

    def load(self, state: State, writers: Writers, *, num_steps: int) -> None:
        """Undo `save`; `num_steps` is 0 where no noise was drawn."""
        set_rng_state(self._requests.rng, state["rng"])
        self.ticket = state["ticket"]
        self.actions = None if state["actions"] is None else torch.as_tensor(state["actions"])
        for key, now in self._state.items():
            now.copy_(torch.as_tensor(state["state"][key]))
        for sample in self.samples:
            sample.load(state["samples"][sample.stream], writers)
        if num_steps:
            self._requests.prepare(num_steps)
            self._requests.load(state["noise"])


def _like(flags: Tensor | None, x: Tensor) -> Tensor:
    """Flags of rows `[B]`, shaped so that they select rows of `x` `[B, ...]`."""
    assert flags is not None, "a vector of teams says which rows are active"
    return flags.view(-1, *[1] * (x.dim() - 1))


class TeamLane:
    """A vector and the parts of its policies, which play in rounds: a round is as long as the longest segment, and every stream
    has a whole number of segments in it."""

    def __init__(self, vector: TeamVector, parts: list[PolicyLane]) -> None:
        self.vector, self.parts = vector, parts
        self.samples = [sample for part in parts for sample in part.samples]
        self.num_steps = 0
        """Steps of the round that is being played; 0 between two rounds."""
        self.t = 0
        self.started = False
        self.waits = ""

    def open(self, writers: Writers, turns: dict[str, int], index: int, num_lanes: int) -> bool:
        """Get the slots that are missing. Those that are there already are kept while others are missing.

        Each stream goes round the lanes (`turns`: whose turn it is), so that the order of its segments does not depend on
        timing. Streams of the longest segments come first: who has such a slot has a claim to all the shorter ones that fit
        into it, so actors never wait for each other in a circle.
        """
        for sample in sorted(self.samples, key=lambda sample: -own_steps(writers[sample.stream].spec)):
            if sample.segment is not None:
                continue
            if turns[sample.stream] != index:
                self.waits = "its turn in the ring"
                return False
            if not sample.reserve(writers[sample.stream]):
                self.waits = f"room on stream {writers[sample.stream].spec.name!r}"
                return False
            turns[sample.stream] = (index + 1) % num_lanes
        self._begin()
        return True

    def _begin(self) -> None:
        if not self.started:
            self.vector.reset()
            self.started = True
        if not self.num_steps:
            self.num_steps, self.t = max(sample.num_steps for sample in self.samples), 0
            for part in self.parts:
                part.draw(self.num_steps)
        for sample in self.samples:
            if not sample.begun:
                sample.begin()

    @property
    def is_open(self) -> bool:
        """Whether every stream has a segment that is being filled."""
        return all(sample.begun for sample in self.samples)

    def advance(self, clients: Clients, *, one: bool) -> int:
        """Play on until a segment is full or a reply is missing; with `one`, a single step. Returns the steps played, or 1 if
        there was at least a request to send."""
        for part in self.parts:
            if not clients[part.route.inference].sync(part.need):
                need = f"version {part.need}" if part.need >= 0 else "a first version"
                self.waits = f"{need} of policy {part.route.inference!r}"
                return 0
        before, asked = self.t, any(part.ticket is None and part.actions is None for part in self.parts)
        stop = self.t + min(sample.left for sample in self.samples)
        while self.t < stop:
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
            part.step()
        self.t += 1

    def full(self) -> list[tuple[PolicyLane, SampleLane]]:
        """The segments whose steps are all played, in the order of the routes."""
        return [(part, sample) for part in self.parts for sample in part.samples if sample.begun and not sample.left]

    def end_round(self) -> None:
        """Begin anew after the last step of a round."""
        if self.t == self.num_steps:
            self.num_steps = 0

    def snapshot(self) -> State:
        return {
            "started": self.started,
            "num_steps": self.num_steps,
            "t": self.t,
            "vector": self.vector.snapshot() if self.started else None,
            "parts": {part.route.inference: part.save(drawn=self.num_steps > 0) for part in self.parts},
        }

    def restore(self, state: State, writers: Writers) -> None:
        self.started, self.num_steps, self.t = state["started"], state["num_steps"], state["t"]
        if self.started:
            self.vector.restore(state["vector"])
        for part in self.parts:
            part.load(state["parts"][part.route.inference], writers, num_steps=self.num_steps)
