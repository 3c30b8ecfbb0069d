"""Wraps the ends of streams for a measurement: they pass everything on, and keep times, rows and the last batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from runnel.core.contracts.inference import Reply, RowPolicy
from runnel.core.records import Batch, Segment
from runnel.core.state import State
from runnel.flow.params import Kept
from runnel.flow.slots import TableReader
from runnel.flow.workers.actor import SavedClient
from runnel.track.folder import Row


def num_bytes(batch: Batch) -> int:
    """The bytes of all tensors in a batch."""
    return sum(x.numel() * x.element_size() for x in batch.values())


class TimedClient:
    """An inference client that times another one."""

    def __init__(self, inner: SavedClient) -> None:
        self.inner = inner
        self.sample: Batch | None = None
        """The rows of one request."""
        self.forget()

    def forget(self) -> None:
        """Drop all measurements."""
        self.calls, self.infer_s, self.infer_cpu, self.load_s = 0, 0.0, 0.0, 0.0
        self.loads = 0
        self.points: list[tuple[float, float]] = []
        """Of an engine: how many completions it decodes together, and the seconds of one such step."""

    @property
    def version(self) -> int:
        return self.inner.version

    @version.setter
    def version(self, version: int) -> None:
        self.inner.version = version

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        wall, cpu = time.perf_counter(), time.process_time()
        ticket = self.inner.submit(rows, version=version, affinity=affinity)
        self._add(wall, cpu)
        self.calls += int(self.inner.pending() == 0)
        if self.sample is None:
            self.sample = rows.map(lambda x: x.clone())
        return ticket

    def poll(self) -> int:
        pending = self.inner.pending()
        wall, cpu = time.perf_counter(), time.process_time()
        done = self.inner.poll()
        if pending:
            self.points.append((float(pending), self._add(wall, cpu)))
            self.calls += 1
        return done

    def local(self) -> Callable[[Batch], Batch] | None:
        direct = self.inner.local()
        if direct is None:
            return None

        def timed(rows: Batch) -> Batch:
            wall, cpu = time.perf_counter(), time.process_time()
            reply = direct(rows)
            self._add(wall, cpu)
            self.calls += 1
            if self.sample is None:
                self.sample = rows.map(lambda x: x.clone())
            return reply

        return timed

    def _add(self, wall: float, cpu: float) -> float:
        spent = time.perf_counter() - wall
        self.infer_s += spent
        self.infer_cpu += time.process_time() - cpu
        return spent

    def sync(self, version: int = -1) -> bool:
        start, before = time.perf_counter(), self.inner.version
        done = self.inner.sync(version)
        self.load_s += time.perf_counter() - start
        self.loads += int(self.inner.version != before)
        return done

    def row_policy(self) -> RowPolicy | None:
        return self.inner.row_policy()

    def ready(self, ticket: int) -> Reply | None:
        return self.inner.ready(ticket)

    def abort(self, tickets: Sequence[int]) -> None:
        self.inner.abort(tickets)

    def pending(self) -> int:
        return self.inner.pending()

    def events(self) -> list[Row]:
        return self.inner.events()

    def snapshot(self, kept: Kept | None = None) -> State:
        return self.inner.snapshot(kept)

    def restore(self, state: State) -> None:
        self.inner.restore(state)

    def close(self) -> None:
        self.inner.close()


class KeepingReader(TableReader):
    """A reader that keeps the last batch, and counts the batches and steps that it gave out."""

    batch: Sequence[Segment] = ()
    steps = 0
    takes = 0

    def take(self, num_segments: int, *, ranks: int = 1) -> list[Segment]:
        found = super().take(num_segments, ranks=ranks)
        if found:
            self.batch = found
            self.steps += sum(s.header.num_steps for s in found)
            self.takes += 1
        return found
