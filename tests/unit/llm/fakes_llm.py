"""In-memory stand-ins for the flow package: a stream with capacity, and an inline client around an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runnel.core.contracts.inference import Reply, Request
from runnel.core.contracts.params import ParamSet
from runnel.core.records import Batch, Header, Segment, Slot, StreamSpec, trim
from runnel.llm.engines.native import NativeEngine


class FakeStream:
    """Writer and reader in one. `required` gives the version that segment number k must be made by."""

    def __init__(self, spec: StreamSpec, required: Callable[[int], int] = lambda k: -1, limit: int | None = None) -> None:
        spec.check()
        self.spec, self._required, self._limit = spec, required, limit
        self.reserved: dict[int, Slot] = {}
        self.committed: list[Segment] = []
        self.cancelled: list[str] = []
        self.steps = 0
        self.learner_version = 0
        self._sequence = 0

    def reserve(self) -> Slot | None:
        busy = {*self.reserved, *(s.index for s in self.committed)}
        if len(busy) == self.spec.capacity or (self._limit is not None and self._sequence >= self._limit):
            return None
        index = next(i for i in range(self.spec.capacity) if i not in busy)
        header = Header(sequence=self._sequence, sample_id=self._sequence * self.spec.num_rows)
        header.required_version = self._required(self._sequence)
        self._sequence += 1
        self.reserved[index] = Slot(index, self.spec, header, self.spec.allocate())
        return self.reserved[index]

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        del self.reserved[slot.index]
        self.steps += num_steps
        arrays = trim(self.spec, slot.arrays, slot.header.used)
        self.committed.append(Segment(slot.index, self.spec, slot.header, arrays))

    def cancel(self, slot: Slot, reason: str) -> None:
        del self.reserved[slot.index]
        self.cancelled.append(reason)

    def reclaim(self, index: int) -> Slot:
        return self.reserved[index]

    def feedback(self) -> list[Any]:
        return []

    def version(self) -> int:
        return self.learner_version

    def take(self, n: int) -> list[Segment]:
        """The next `n` segments in sequence order, if they are there."""
        ready = sorted(self.committed, key=lambda s: s.header.sequence)[:n]
        if len(ready) < n:
            return []
        self.committed = [s for s in self.committed if all(s is not r for r in ready)]
        return ready


class FakeClient:
    """An inline client: `poll` is one engine step; `published` holds the versions that `sync` can load."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.published: dict[int, ParamSet] = {}
        self.replies: dict[int, Reply] = {}
        self.next_ticket = 0
        self.syncs: list[int] = []

    @property
    def version(self) -> int:
        return self.engine.version

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        self.next_ticket += 1
        self.engine.submit([Request(self.next_ticket, rows, version)])
        return self.next_ticket

    def poll(self) -> int:
        before = self.engine.num_tokens
        self.replies |= {r.id: r for r in self.engine.step()}
        return self.engine.num_tokens - before

    def ready(self, ticket: int) -> Reply | None:
        return self.replies.pop(ticket, None)

    def abort(self, tickets: Sequence[int]) -> None:
        self.engine.abort(tickets)

    def pending(self) -> int:
        return self.engine.pending()

    def local(self) -> None:
        return None

    def row_policy(self) -> None:
        return None

    def sync(self, version: int = -1) -> bool:
        wanted = max(self.published, default=-1) if version < 0 else version
        if wanted not in self.published:
            return False
        if wanted != self.engine.version:
            self.syncs.append(wanted)
            self.engine.load_params(self.published[wanted])
        return True
