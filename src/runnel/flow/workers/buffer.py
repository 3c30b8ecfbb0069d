"""The buffer worker: stores the actors' segments and makes training batches from them, at a fixed ratio."""

from __future__ import annotations

from collections import deque

import numpy as np

from runnel.core.clock import Clock
from runnel.core.contracts.samples import Feedback, SampleWriter, Store
from runnel.core.errors import DataError
from runnel.core.rng import rng_state, set_rng_state
from runnel.core.state import State
from runnel.core.worker import Worker
from runnel.flow.slots import TableReader
from runnel.flow.staleness import ReplayRatioRule


class BufferWorker(Worker):
    """Consumes segments, produces batches sampled from its store, and receives feedback on them (priorities).

    It waits for actors to write, or for the trainer to take its batch. Only counters decide the order: make every batch that
    the inserted steps allow, then insert the next segment. Batch k is sampled when the store has the feedback of exactly the
    batches up to k - 1 - lag, even if later feedback has arrived. So the samples do not depend on timing.
    """

    kind = "buffer"

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        reader: TableReader,
        writer: SampleWriter,
        store: Store,
        policy: ReplayRatioRule,
        rng: np.random.Generator,
    ) -> None:
        super().__init__(name, clock)
        self._reader, self._writer, self._store, self._policy, self._rng = reader, writer, store, policy, rng
        self._inserted = 0
        self._reported = 0
        self._given = 0
        self._answers: deque[Feedback] = deque()
        self._waiting = ""

    def poll(self) -> int:
        work = self._collect()
        if not self._due():
            work += self._insert()
        return work + self._give() if self._due() else work

    def _due(self) -> bool:
        return self._given < self._policy.updates(self._inserted)

    def _collect(self) -> int:
        """Collect feedback of the trainer, and pass the learner's version on to the actors' stream."""
        answers = self._writer.feedback()
        self._answers.extend(answers)
        self._reader.advance(self._writer.version())
        return len(answers)

    def _give(self) -> int:
        slot = self._writer.reserve()
        if slot is None:
            self._waiting = "the trainer to take a batch"
            return 0
        rows, heard = slot.spec.num_rows, self._given - self._policy.lag
        # Apply only the feedback that is due by counters, even if more has arrived: sampling must not depend on timing.
        while self._answers and self._answers[0].sample_id // rows < heard:
            self._store.feedback(self._answers.popleft())
        with self.timer.stage("select"):
            first_time = self._store.sample(slot, self._rng)
        slot.header.version_min = slot.header.version_max = self._writer.version()
        new_steps = self._inserted - self._reported
        self._writer.commit(slot, num_steps=new_steps)
        self._reader.settle(consumed=first_time)
        self._reported, self._given = self._inserted, self._given + 1
        return 1

    def _insert(self) -> int:
        segments = self._reader.take(1)
        if not segments:
            self._waiting = "actors to write experience"
            return 0
        with self.timer.stage("insert"):
            unused = self._store.insert(segments[0])
        self._reader.hold(segments)
        if unused:
            self._reader.settle(dropped={"evicted_unused": unused})
        self._inserted += segments[0].header.num_steps
        return 1

    def check(self) -> None:
        """Check that the unused rows of the store are those of the stream's account."""
        held, said = self._store.held_rows(), self._reader.held()
        if held != said:
            raise DataError(f"buffer {self.name!r} holds {held} rows that were never selected, but its account says {said}")

    def waits_for(self) -> str:
        return self._waiting

    def snapshot(self) -> State:
        return {
            "store": self._store.snapshot(),
            "rng": rng_state(self._rng),
            "counts": [self._inserted, self._reported, self._given],
            "answers": [{"sample_id": a.sample_id, "values": a.values} for a in self._answers],
        }

    def restore(self, state: State) -> None:
        self._store.restore(state["store"])
        set_rng_state(self._rng, state["rng"])
        self._inserted, self._reported, self._given = state["counts"]
        self._answers = deque(Feedback(a["sample_id"], a["values"]) for a in state["answers"])
