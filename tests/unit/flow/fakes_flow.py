"""Learners, inferencers, stores and streams that fit in a test of one worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.evaluation import EvalResult
from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.learning import Update
from runnel.core.contracts.params import ParamSet
from runnel.core.contracts.samples import Feedback
from runnel.core.errors import EvaluationInterrupted
from runnel.core.records import Batch, FieldSpec, Segment, Slot, StreamSpec
from runnel.core.state import State
from runnel.flow.params import ChannelSubscriber, LocalChannel
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.flow.staleness import AdmissionRule
from runnel.flow.transports.inproc import InprocTransport

ROWS = 2


def make_table(name: str, policy: AdmissionRule, **settings: Any) -> SlotTable:
    feedback = {"priority": FieldSpec(("B",))}
    spec = StreamSpec(name, {"x": FieldSpec(("B",))}, {"B": ROWS}, **{"feedback": feedback, **settings})
    return InprocTransport().samples(spec, policy)


def put(table: SlotTable, value: float = 0.0, *, version: int = 0, steps: int = 10, writer: int = 0) -> Slot | None:
    slot = TableWriter(table, writer).reserve()
    if slot is not None:
        slot.arrays["x"].fill_(value)
        slot.header.version_min = slot.header.version_max = version
        TableWriter(table, writer).commit(slot, num_steps=steps)
    return slot


def trainer_of(table: SlotTable) -> TableReader:
    return TableReader(table, "trainer")


def channel_of(*versions: int, depth: int = 3, shared: bool = False) -> LocalChannel:
    channel = LocalChannel("policy", shared=shared, depth=depth)
    for v in versions:
        channel.publish(v, {"w": torch.tensor(float(v))})
    return channel


class FakeLearner:
    """Adds up what it was given; answers with the mean of each segment."""

    def __init__(self, log: list[str] | None = None, answers: Sequence[str] = ()) -> None:
        self.total = torch.zeros(())
        self.log, self.answers = log if log is not None else [], answers
        self.progress: list[float] = []
        self._segments: Mapping[str, Sequence[Segment]] = {}

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        self.progress.append(progress)
        self._segments = segments
        self.log.append("prepare " + " ".join(f"{k}:{len(v)}" for k, v in segments.items()))
        return Batch.cat([s.arrays for group in segments.values() for s in group])

    def update(self, batch: Batch) -> Update:
        self.log.append("update")
        self.total += batch["x"].sum()
        said: dict[str, list[Mapping[str, Tensor]]] = {
            name: [{"priority": s.arrays["x"] + 0.5} for s in self._segments[name]]
            for name in self.answers
            if name in self._segments
        }
        return Update({"loss": 1.0}, said)

    def params(self) -> Mapping[str, Tensor]:
        return {"w": self.total}

    def state_dict(self) -> State:
        return {"total": self.total.clone()}

    def load_state_dict(self, state: State) -> None:
        self.total.copy_(state["total"])


class FakeInferencer:
    """Answers each row with row + w * 1000, all that is pending at once or `per_step` requests a step."""

    def __init__(self, *, immediate: bool = True, per_step: int | None = None) -> None:
        self.immediate, self.per_step = immediate, per_step
        self.waiting: list[Request] = []
        self.batches: list[int] = []
        self.aborted: list[int] = []
        self.loaded: list[int] = []
        self.params: ParamSet | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        self.waiting += requests

    def step(self) -> list[Reply]:
        assert self.params is not None
        now, self.waiting = self.waiting[: self.per_step], self.waiting[self.per_step :] if self.per_step else []
        self.batches.append(len(now))
        w, version = self.params.params["w"], self.params.version
        return [Reply(r.id, Batch(x=r.rows["x"] + 1000 * w), version) for r in now]

    def abort(self, ids: Sequence[int]) -> None:
        self.aborted += ids
        self.waiting = [r for r in self.waiting if r.id not in ids]

    def pending(self) -> int:
        return len(self.waiting)

    def load_params(self, params: ParamSet) -> None:
        self.params = params
        self.loaded.append(params.version)

    def snapshot(self) -> State:
        return {"waiting": [{"id": r.id, "rows": dict(r.rows), "version": r.version} for r in self.waiting]}

    def restore(self, state: State) -> None:
        self.waiting = [Request(r["id"], Batch(r["rows"]), r["version"]) for r in state["waiting"]]


class FakeStore:
    """Keeps segments' values; a batch is the newest value plus a random number. Holds at most `capacity` segments."""

    def __init__(self, capacity: int = 1000) -> None:
        self.capacity = capacity
        self.values: list[float] = []
        self.unused: list[float] = []
        self.said: list[list[float]] = []

    def insert(self, segment: Segment) -> int:
        self.values.append(float(segment.arrays["x"][0]))
        self.unused.append(self.values[-1])
        evicted = 0
        if len(self.values) > self.capacity:
            gone = self.values.pop(0)
            evicted = ROWS * self.unused.count(gone)
            self.unused = [v for v in self.unused if v != gone]
        return evicted

    def sample(self, slot: Slot, rng: np.random.Generator) -> int:
        slot.arrays["x"].fill_(self.values[-1] + float(rng.random()))
        first = ROWS * self.unused.count(self.values[-1])
        self.unused = [v for v in self.unused if v != self.values[-1]]
        return first

    def feedback(self, values: Feedback) -> None:
        self.said.append(values.values["priority"].tolist())

    def held_rows(self) -> int:
        return ROWS * len(self.unused)

    @property
    def num_steps(self) -> int:
        return len(self.values)

    def snapshot(self) -> State:
        return {"values": list(self.values), "unused": list(self.unused)}

    def restore(self, state: State) -> None:
        self.values, self.unused = list(state["values"]), list(state["unused"])


class FakeEvaluation:
    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []
        self.faults: list[dict[str, Any]] = []
        self.closed = self.stop = False

    def run(self, clients: Any, *, round_index: int, progress: Any = None) -> EvalResult:
        client = clients["policy"]
        if self.stop:
            raise EvaluationInterrupted
        self.runs.append((client.version, round_index))
        reply = client.ready(client.submit(Batch(x=torch.zeros(1))))
        return EvalResult([float(reply.rows["x"][0])], {"length": [3.0]}, [{"text": "a"}], self.faults)

    def close(self) -> None:
        self.closed = True


def subscriber_of(channel: LocalChannel) -> ChannelSubscriber:
    return ChannelSubscriber(channel)
