"""The replay buffer: a transform that stores the actors' segments and makes training batches from them, at a fixed ratio."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from runnel.core.contracts.inference import InferenceClient
from runnel.core.contracts.samples import Feedback, SampleReader, SampleWriter, Store
from runnel.core.rng import rng_state, set_rng_state
from runnel.core.state import State, WorkerEvent
from runnel.core.trajectories import DECISIONS, decisions_in
from runnel.core.worker import StageTimer
from runnel.flow.staleness import ReplayRatioRule


class ReplayBuffer:
    """A `Transform`: consumes segments, produces batches sampled from its store, and receives feedback on them (priorities).

    It waits for actors to write, or for the trainer to take its batch. Only counters decide the order: make every batch that
    the inserted steps allow, then insert the next segment. Batch k is sampled when the store has the feedback of exactly the
    batches up to k - 1 - lag, even if later feedback has arrived. So the samples do not depend on timing.
    """

    def __init__(
        self,
        *,
        store: Store,
        policy: ReplayRatioRule,
        rng: np.random.Generator,
        reads: str = "trajectories",
        writes: str = "replay",
    ) -> None:
        self._store, self._policy, self._rng = store, policy, rng
        self._reads, self._writes = reads, writes
        self._inserted = 0
        self._reported = 0
        self._decisions = 0
        """Of agents of teams, in steps that no batch has reported yet."""
        self._given = 0
        self._answers: deque[Feedback] = deque()
        self._waiting = ""

    def step(
        self,
        readers: Mapping[str, SampleReader],
        clients: Mapping[str, InferenceClient],
        writers: Mapping[str, SampleWriter],
        *,
        timer: StageTimer,
    ) -> int:
        reader, writer = readers[self._reads], writers[self._writes]
        work = self._collect(reader, writer)
        if not self._due():
            work += self._insert(reader, timer)
        return work + self._give(reader, writer, timer) if self._due() else work

    def _due(self) -> bool:
        return self._given < self._policy.updates(self._inserted)

    def _collect(self, reader: SampleReader, writer: SampleWriter) -> int:
        """Collect feedback of the trainer, and pass the learner's version on to the actors' stream."""
        answers = writer.feedback()
        self._answers.extend(answers)
        reader.advance(writer.version())
        return len(answers)

    def _give(self, reader: SampleReader, writer: SampleWriter, timer: StageTimer) -> int:
        slot = writer.reserve()
        if slot is None:
            self._waiting = "the trainer to take a batch"
            return 0
        rows, heard = slot.spec.num_rows, self._given - self._policy.lag
        # Apply only the feedback that is due by counters, even if more has arrived: sampling must not depend on timing.
        while self._answers and self._answers[0].sample_id // rows < heard:
            self._store.feedback(self._answers.popleft())
        with timer.stage("select"):
            first_time = self._store.sample(slot, self._rng)
        slot.header.version_min = slot.header.version_max = writer.version()
        if DECISIONS in slot.arrays:
            slot.arrays[DECISIONS].zero_()[0] = self._decisions
            self._decisions = 0
        new_steps = self._inserted - self._reported
        writer.commit(slot, num_steps=new_steps)
        reader.settle(consumed=first_time)
        self._reported, self._given = self._inserted, self._given + 1
        return 1

    def _insert(self, reader: SampleReader, timer: StageTimer) -> int:
        segments = reader.take(1)
        if not segments:
            self._waiting = "actors to write experience"
            return 0
        self._decisions += decisions_in(segments[0].spec, segments[0].arrays) or 0
        with timer.stage("insert"):
            unused = self._store.insert(segments[0])
        reader.hold(segments)
        if unused:
            reader.settle(dropped={"evicted_unused": unused})
        self._inserted += segments[0].header.num_steps
        return 1

    def held(self) -> Mapping[str, int]:
        return {self._reads: self._store.held_rows()}

    def waits_for(self) -> str:
        return self._waiting

    def events(self) -> list[WorkerEvent]:
        return []

    def snapshot(self) -> State:
        return {
            "store": self._store.snapshot(),
            "rng": rng_state(self._rng),
            "counts": [self._inserted, self._reported, self._given, self._decisions],
            "answers": [{"sample_id": a.sample_id, "values": a.values} for a in self._answers],
        }

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None:
        self._store.restore(state["store"])
        set_rng_state(self._rng, state["rng"])
        self._inserted, self._reported, self._given, *decisions = state["counts"]
        self._decisions = sum(decisions)  # checkpoints of older releases count none
        self._answers = deque(Feedback(a["sample_id"], a["values"]) for a in state["answers"])

    def close(self) -> None:
        """Nothing is held outside this process."""
