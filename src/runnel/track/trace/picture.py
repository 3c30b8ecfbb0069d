"""Records as events of the trace format: slices, waits, counters and instants of one process.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (read by Perfetto and chrome://tracing).
Times are microseconds, written from whole nanoseconds: what follows on something else never begins before its end.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runnel.core.trace import COUNT, INSTANT, SPAN, WAIT
from runnel.track.trace.files import Integers, Numbers, Process, lanes_of, names_of


@dataclass
class Slices:
    """The slices of one lane by start: whole nanoseconds."""

    start: list[int]
    end: list[int]

    def at(self, t: int) -> int | None:
        """The slice at `t`, or else the next one."""
        i = bisect_right(self.start, t) - 1
        if i >= 0 and t <= self.end[i]:
            return i
        return i + 1 if i + 1 < len(self.start) else None

    def before(self, t: int) -> int | None:
        """The last slice that had begun at `t`."""
        i = bisect_right(self.start, t) - 1
        return i if i >= 0 else None

    def inside(self, i: int, t: int) -> int:
        """`t`, or the nearest moment that is in slice `i`."""
        return min(max(t, self.start[i]), self.end[i])


class Track:
    """A process of the picture: its number, and its records as text. `zero_s` is the beginning of the picture."""

    def __init__(self, process: Process, pid: int, zero_s: float) -> None:
        self.process, self.pid, self._zero_s = process, pid, zero_s
        self._names = [json.dumps(name) for name in process.names]
        self.slices: dict[int, Slices] = {}

    def nanoseconds(self, seconds: Numbers) -> Integers:
        """Times of the process as whole nanoseconds of the picture."""
        found: Integers = np.rint((seconds + (self.process.shift_s - self._zero_s)) * 1e9).astype(np.int64)
        return found

    def heads(self, *, num_epochs: int) -> Iterator[str]:
        """Names of the process and of its lanes."""
        p = self.process
        title = p.group + (f", epoch {p.epoch}" if num_epochs > 1 else "") + (f", start {p.restarts + 1}" if p.restarts else "")
        yield meta("process_name", self.pid, name=title)
        yield meta("process_labels", self.pid, labels=f"{p.host} process {p.pid}")
        yield meta("process_sort_index", self.pid, sort_index=self.pid)
        for lane, worker in enumerate(p.lanes):
            yield meta("thread_name", self.pid, lane + 1, name=worker)
            yield meta("thread_sort_index", self.pid, lane + 1, sort_index=lane)

    def events(self) -> Iterator[str]:
        """Slices lane by lane, then counters and instants."""
        spans, waits = self.process.of_kind(SPAN), self.process.of_kind(WAIT)
        for lane in range(len(self.process.lanes)):
            yield from self._lane(lane, spans[lanes_of(spans) == lane], waits[lanes_of(waits) == lane])
        yield from self._counters(self.process.of_kind(COUNT))
        yield from self._instants(self.process.of_kind(INSTANT))

    def _lane(self, lane: int, spans: Numbers, waits: Numbers) -> Iterator[str]:
        rows = np.concatenate([spans, waits])
        start, end = self.nanoseconds(rows[:, 1]), self.nanoseconds(rows[:, 2])
        order = np.lexsort((-end, start))
        own = sorted(zip(start[: len(spans)].tolist(), end[: len(spans)].tolist(), strict=True))
        self.slices[lane] = Slices([s for s, _ in own], [e for _, e in own])
        names = names_of(rows)
        tail = f'"pid":{self.pid},"tid":{lane + 1}'
        columns = zip(
            names[order].tolist(),
            start[order].tolist(),
            end[order].tolist(),
            rows[order, 3].tolist(),
            rows[order, 4].tolist(),
            (order < len(spans)).tolist(),
            strict=True,
        )
        for name, s, e, busy, pieces, is_stage in columns:
            args = f',"args":{{"busy_us":{busy * 1e6:.3f},"pieces":{pieces:.0f}}}' if is_stage else ""
            cat = "stage" if is_stage else "wait"
            head = f'{{"ph":"X","cat":"{cat}","name":{self._names[name]}'
            yield f'{head},"ts":{micro(s)},"dur":{micro(e - s)},{tail}{args}}}'

    def _counters(self, rows: Numbers) -> Iterator[str]:
        times = self.nanoseconds(rows[:, 1]).tolist()
        for name, t, value in zip(names_of(rows).tolist(), times, rows[:, 2].tolist(), strict=True):
            head = f'{{"ph":"C","name":{self._names[name]},"ts":{micro(t)}'
            yield f'{head},"pid":{self.pid},"tid":0,"args":{{"value":{json.dumps(value)}}}}}'

    def _instants(self, rows: Numbers) -> Iterator[str]:
        times, lanes = self.nanoseconds(rows[:, 1]).tolist(), lanes_of(rows).tolist()
        if self.process.restarts:
            start = self.nanoseconds(np.array([self.process.clocks[0][0]])).tolist()[0]
            yield instant(f"{self.process.group} was started again", start, self.pid, 1)
        for name, t, lane in zip(names_of(rows).tolist(), times, lanes, strict=True):
            yield instant(self.process.names[name], t, self.pid, lane + 1)


def instant(name: str, t: int, pid: int, tid: int) -> str:
    """Something that happened."""
    scope = "g" if pid == 1 else "p"
    return f'{{"ph":"i","s":"{scope}","cat":"event","name":{json.dumps(name)},"ts":{micro(t)},"pid":{pid},"tid":{tid}}}'


def meta(what: str, pid: int, tid: int = 0, **args: str | int) -> str:
    """A name of a process or a lane."""
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args})


def micro(nanoseconds: int) -> str:
    """Microseconds with their fraction, to the last digit.

    >>> micro(1234567), micro(5)
    ('1234.567', '0.005')
    """
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
