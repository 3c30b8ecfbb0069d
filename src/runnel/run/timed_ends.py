"""Measures the ends of streams: a client and a reader that work as usual, and keep times, rows and the last batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from runnel.core.records import Batch, Segment
from runnel.flow.inference.inline import InlineClient
from runnel.flow.slots import TableReader


class TimedClient(InlineClient):
    """An inline client that takes over the inferencer of another one, and times it."""

    def __init__(self, client: InlineClient) -> None:
        super().__init__(client._inferencer, client._subscriber)
        self.sample: Batch | None = None
        """The rows of one request."""
        self.forget()

    def forget(self) -> None:
        """Drop all measurements."""
        self.calls, self.infer_s, self.infer_cpu, self.load_s = 0, 0.0, 0.0, 0.0
        self.loads = 0
        self.points: list[tuple[float, float]] = []
        """For a language model: the number of completions that it decodes together, and the seconds of one such step."""

    def submit(self, rows: Batch, *, version: int = -1, affinity: int = -1) -> int:
        wall, cpu = time.perf_counter(), time.process_time()
        ticket = super().submit(rows, version=version, affinity=affinity)
        self._add(wall, cpu, rows)
        self.calls += int(self.pending() == 0)
        return ticket

    def poll(self) -> int:
        pending = self.pending()
        wall, cpu = time.perf_counter(), time.process_time()
        done = super().poll()
        if pending:
            self.points.append((float(pending), self._add(wall, cpu)))
            self.calls += 1
        return done

    def local(self) -> Callable[[Batch], Batch] | None:
        direct = super().local()
        if direct is None:
            return None

        def timed(rows: Batch) -> Batch:
            wall, cpu = time.perf_counter(), time.process_time()
            reply = direct(rows)
            self._add(wall, cpu, rows)
            self.calls += 1
            return reply

        return timed

    def _add(self, wall: float, cpu: float, rows: Batch | None = None) -> float:
        """Add the time since `wall` and `cpu` to inference. The first `rows` are kept as the sample."""
        spent = time.perf_counter() - wall
        self.infer_s += spent
        self.infer_cpu += time.process_time() - cpu
        if self.sample is None and rows is not None:
            self.sample = rows.map(lambda x: x.clone())
        return spent

    def sync(self, version: int = -1) -> bool:
        start, before = time.perf_counter(), self.version
        done = super().sync(version)
        self.load_s += time.perf_counter() - start
        self.loads += int(self.version != before)
        return done


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
