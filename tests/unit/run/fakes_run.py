"""An experiment that needs no environment: actors count, a policy adds, a learner moves what is added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from runnel.core.clock import ManualClock
from runnel.core.contracts.evaluation import EvalResult
from runnel.core.contracts.inference import InferenceClient, Reply, Request
from runnel.core.contracts.learning import Update
from runnel.core.contracts.samples import SampleWriter
from runnel.core.records import Batch, FieldSpec, Slot, StreamSpec
from runnel.core.state import State
from runnel.flow.workers.trainer import Phase
from runnel.graphs.experiment import ActorSpec, EvaluationSpec, Experiment, InferenceStream, TrainerSpec
from runnel.graphs.run_config import EvalConfig, RunConfig
from runnel.run.group import ProcessGroup
from runnel.run.wiring import place, wire


class CountingSampler:
    """Asks what the policy makes of its counter, one row a step; two steps a segment."""

    def __init__(self, index: int) -> None:
        self.count, self.at, self.version = 100.0 * index, 0, 0
        self._slot: Slot | None = None

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        client, writer = clients["policy"], writers["play"]
        if self._slot is None:
            self._slot, self.at = writer.reserve(), 0
            if self._slot is None:
                return 0
        if self.at == 0 and not client.sync(self._slot.header.required_version):
            return 0
        reply = client.ready(client.submit(Batch(x=torch.tensor([self.count]))))
        assert reply is not None
        self._slot.arrays["y"][self.at] = reply.rows["x"][0]
        self.version = reply.version if self.at == 0 else self.version
        self.count, self.at = self.count + 1.0, self.at + 1
        if self.at == 2:
            self._slot.header.version_min, self._slot.header.version_max = self.version, reply.version
            writer.commit(self._slot, num_steps=2)
            self._slot = None
        return 1

    def waits_for(self) -> str:
        return "room on 'play'"

    def events(self) -> list[dict[str, Any]]:
        return []

    def snapshot(self) -> State:
        slot = None if self._slot is None else self._slot.index
        return {"count": self.count, "at": self.at, "version": self.version, "slot": slot}

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self.count, self.at, self.version = state["count"], state["at"], state["version"]
        self._slot = None if state["slot"] is None else writers["play"].reclaim(state["slot"])

    def close(self) -> None: ...


class Adder:
    """Policy x + w; learning adds the mean of the batch, scaled, to w."""

    immediate = True

    def __init__(self) -> None:
        self.w = torch.zeros(1)
        self.waiting: list[Request] = []
        self.version = -1

    # ------------------------------------------------------------------------------------------------------- inferring
    def submit(self, requests: Any) -> None:
        self.waiting += requests

    def step(self) -> list[Any]:
        now, self.waiting = self.waiting, []
        return [Reply(r.id, Batch(x=r.rows["x"] + self.w), self.version) for r in now]

    def abort(self, ids: Any) -> None: ...

    def pending(self) -> int:
        return len(self.waiting)

    def load_params(self, params: Any) -> None:
        self.w, self.version = params.params["w"] if params.shared else params.params["w"].clone(), params.version

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...

    # -------------------------------------------------------------------------------------------------------- learning
    def prepare(self, segments: Any, *, progress: float) -> Batch:
        return Batch(y=torch.stack([s.arrays["y"] for s in segments["play"]]))

    def update(self, batch: Batch) -> Update:
        self.w += 0.01 * batch["y"].mean()
        return Update({"mean": float(batch["y"].mean())})

    def params(self) -> Mapping[str, Tensor]:
        return {"w": self.w}

    def state_dict(self) -> State:
        return {"w": self.w.clone()}

    def load_state_dict(self, state: State) -> None:
        self.w.copy_(state["w"])


class Measure:
    def run(self, clients: Any, *, round_index: int, progress: Any = None) -> EvalResult:
        client = clients["policy"]
        reply = client.ready(client.submit(Batch(x=torch.zeros(1))))
        return EvalResult([float(reply.rows["x"][0])])

    def close(self) -> None: ...


def experiment(num_actors: int = 2, **settings: Any) -> Experiment:
    config = RunConfig(total_updates=20, num_actors=num_actors, eval=EvalConfig(every=2), **settings)
    policy = config.lag_rule(num_actors)
    stream = StreamSpec(
        "play",
        {"y": FieldSpec(("T",))},
        {"T": 2, "B": 1},
        capacity=num_actors * (policy.lag + 1),
        batch_segments=num_actors,
        num_writers=num_actors,
    )
    return Experiment(
        config=config,
        title="counting",
        streams=(stream,),
        staleness={"play": policy},
        actors=tuple(
            ActorSpec(f"actor-{i}", lambda incarnation, i=i: CountingSampler(i), writes=("play",))  # type: ignore[misc]
            for i in range(num_actors)
        ),
        inference=(InferenceStream(Adder, num_workers=config.placement.policy_workers, max_bytes=512),),
        trainers=(TrainerSpec(lambda ranks: Adder(), (Phase({"play": num_actors}),)),),
        policy=lambda: (None, Adder()),  # type: ignore[arg-type, return-value]
        evaluation=EvaluationSpec(Measure, Adder),
    )


def group_of(e: Experiment) -> ProcessGroup:
    return wire(e, place(e), "main", clock=ManualClock())


def run(group: ProcessGroup, num_rounds: int) -> list[dict[str, Any]]:
    events = []
    for _ in range(num_rounds):
        group.round()
        group.check()
        events += group.collect()
    return events
