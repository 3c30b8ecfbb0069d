"""The counting experiment with more of everything: a transform that labels, an archive, and a second trainer at its own pace.

`play` is read by the trainer (it paces), by `label` and by `archive`. `label` asks the inference stream `judge` what each
segment is worth, and writes `labels`; the trainer `critic` learns their mean from three at a time, and publishes it in the
channel `worth`. The leading learner adds what it has loaded of `worth` to what it learns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from fakes_run import Adder, experiment
from torch import Tensor

from runnel.core.contracts.evaluation import EvalResult, ResultTable
from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.learning import Update
from runnel.core.contracts.samples import SampleReader, SampleWriter
from runnel.core.records import Batch, FieldSpec, StreamSpec
from runnel.core.state import State
from runnel.core.worker import StageTimer
from runnel.flow.inference.function import FunctionInferencer
from runnel.flow.staleness import LagRule
from runnel.flow.workers.trainer import Phase
from runnel.flow.workers.transform import StatelessTransform
from runnel.graphs.experiment import EvaluationSpec, Experiment, InferenceStream, TrainerSpec, TransformSpec


class Label(StatelessTransform):
    """Asks what a segment is worth, one at a time, and writes the reply with the id of its parent."""

    def step(
        self,
        readers: Mapping[str, SampleReader],
        clients: Mapping[str, InferenceClient],
        writers: Mapping[str, SampleWriter],
        *,
        timer: StageTimer,
    ) -> int:
        reader, client, writer = readers["play"], clients["judge"], writers["labels"]
        if not client.sync():
            self.waiting = "a judge"
            return 0
        slot = writer.reserve() if reader.available() else None
        if slot is None:
            self.waiting = "a segment to label, and room for its label"
            return 0
        (segment,) = reader.take(1)
        with timer.stage("label"):
            reply = client.ready(client.submit(Batch(x=segment.arrays["y"].sum()[None])))
        assert reply is not None
        slot.arrays["worth"].copy_(reply.rows["x"])
        slot.arrays["parent"].fill_(segment.header.sample_id)
        slot.header.version_min = slot.header.version_max = -1
        writer.commit(slot, num_steps=1)
        reader.release([segment])
        return 1


class Archive(StatelessTransform):
    """Keeps the sum of what it has seen, and holds the last segment."""

    stands = False

    def __init__(self) -> None:
        self.total, self.seen, self.rows = 0.0, list[int](), 0

    def step(
        self,
        readers: Mapping[str, SampleReader],
        clients: Mapping[str, InferenceClient],
        writers: Mapping[str, SampleWriter],
        *,
        timer: StageTimer,
    ) -> int:
        reader = readers["play"]
        found = [] if self.stands else reader.take(1)
        for segment in found:
            self.total += float(segment.arrays["y"].sum())
            self.seen.append(segment.header.sequence)
            reader.settle(consumed=self.rows)
            reader.hold([segment])
            self.rows = segment.num_rows
        return len(found)

    def held(self) -> Mapping[str, int]:
        return {"play": self.rows}

    def snapshot(self) -> State:
        return {"total": self.total, "seen": list(self.seen), "rows": self.rows}

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self.total, self.seen, self.rows = state["total"], list(state["seen"]), state["rows"]


class Guided(Adder):
    """The counting learner, with what `worth` says added to every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.worth = torch.zeros(1)

    def load_params(self, channel: Any, params: Any = None) -> None:
        if params is None:  # as an inferencer
            super().load_params(channel)
            return
        assert channel == "worth"
        self.worth = params.params["w"].clone()

    def update(self, batch: Batch) -> Update:
        update = super().update(batch)
        self.w += 0.001 * self.worth
        return update

    def state_dict(self) -> State:
        return {**super().state_dict(), "worth": self.worth.clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.worth.copy_(state["worth"])


class InParts(Adder):
    """The counting learner, which adds up the segments of a batch as they arrive."""

    takes_parts = True

    def __init__(self) -> None:
        super().__init__()
        self.sum, self.count, self.log = torch.zeros(1), 0, list[int]()

    def add_part(self, segments: Any, *, progress: float) -> None:
        for segment in segments["play"]:
            self.sum, self.count = self.sum + segment.arrays["y"].mean(), self.count + 1
            self.log.append(segment.header.sequence)

    def finish_parts(self) -> Update:
        mean = self.sum / self.count
        self.w += 0.01 * mean
        self.sum, self.count = torch.zeros(1), 0
        return Update({"mean": float(mean)})

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.sum, self.count = torch.zeros(1), 0


class Critic:
    """Moves a number towards the mean of the labels."""

    def __init__(self) -> None:
        self.w, self.parents = torch.zeros(1), list[int]()

    def prepare(self, segments: Any, *, progress: float) -> Batch:
        self.parents += [int(s.arrays["parent"][0]) for s in segments["labels"]]
        return Batch(worth=torch.stack([s.arrays["worth"] for s in segments["labels"]]))

    def update(self, batch: Batch) -> Update:
        self.w += 0.1 * (batch["worth"].mean() - self.w)
        return Update({"loss": float((batch["worth"].mean() - self.w).square())})

    def params(self) -> Mapping[str, Tensor]:
        return {"w": self.w}

    def state_dict(self) -> State:
        return {"w": self.w.clone(), "parents": list(self.parents)}

    def load_state_dict(self, state: State) -> None:
        self.w.copy_(state["w"])
        self.parents = list(state["parents"])


def judge() -> FunctionInferencer:
    """Says half of what it is asked about."""
    return FunctionInferencer(lambda rows: Batch(x=rows["x"] / 2))


class Match:
    """Asks the policy and the critic, and tells both in a table."""

    def run(self, clients: Any, *, round_index: int, progress: Any = None) -> EvalResult:
        found = {name: client.ready(client.submit(Batch(x=torch.zeros(1)))) for name, client in clients.items()}
        scores = {name: float(reply.rows["x"][0]) for name, reply in found.items()}
        table = ResultTable(list(scores), ["score", "version"], [[scores[n], float(found[n].version)] for n in scores])
        return EvalResult([scores["policy"]], tables={"scores": table})

    def close(self) -> None: ...


def plural(*, lossy: bool = False, archive: type[Archive] = Archive, **settings: Any) -> Experiment:
    e = experiment(**settings)
    label = LagRule(lag=1, batch=3, exact=False)
    readers, lossy_readers = (("trainer", "label"), ("archive",)) if lossy else (("trainer", "label", "archive"), ())
    play = replace(e.streams[0], readers=readers, lossy_readers=lossy_readers, capacity=2 * e.streams[0].capacity)
    labels = StreamSpec(
        "labels",
        {"worth": FieldSpec(("B",)), "parent": FieldSpec(("B",), torch.int64)},
        {"B": 1},
        capacity=6,
        batch_segments=3,
        readers=("critic",),
    )
    return replace(
        e,
        streams=(play, labels),
        staleness={**e.staleness, "labels": label},
        evaluation=EvaluationSpec(Match, Adder, {"critic": (Adder, "worth"), "judge": (judge, "")}),
        inference=(*e.inference, InferenceStream(judge, name="judge", params="", max_bytes=512)),
        transforms=(
            TransformSpec("label", lambda incarnation: Label(), reads=("play",), writes=("labels",), asks=("judge",)),
            TransformSpec("archive", lambda incarnation: archive(), reads=("play",)),
        ),
        trainers=(
            TrainerSpec(lambda ranks: Guided(), e.leader.phases, loads=("worth",)),
            TrainerSpec(lambda ranks: Critic(), (Phase({"labels": 3}),), name="critic", channel="worth"),
        ),
    )
