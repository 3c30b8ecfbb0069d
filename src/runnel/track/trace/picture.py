"""Turns the records of one process into events of the trace format: slices, waits, counters and instants.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (read by Perfetto and chrome://tracing).
Times are microseconds, written from whole nanoseconds. So rounding never makes a slice begin before the previous one ends.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from runnel.core.trace import COUNT, INSTANT, SPAN, WAIT
from runnel.track.trace.files import Integers, Numbers, Process, names_of, tracks_of


@dataclass
class Slices:
    """The slices of one track in order of their start, in whole nanoseconds."""

    start: list[int]
    end: list[int]

    def at(self, t: int) -> int | None:
        """The slice at `t`, or else the next one."""
        i = bisect_right(self.start, t) - 1
        if i >= 0 and t <= self.end[i]:
            return i
        return i + 1 if i + 1 < len(self.start) else None

    def before(self, t: int) -> int | None:
        """The last slice that began at or before `t`."""
        i = bisect_right(self.start, t) - 1
        return i if i >= 0 else None

    def inside(self, i: int, t: int) -> int:
        """`t`, or the moment of slice `i` that is nearest to it."""
        return min(max(t, self.start[i]), self.end[i])


class ProcessPicture:
    """One process in the picture: its number, and its records as JSON text. The picture begins at `zero_s`."""

    def __init__(self, process: Process, pid: int, zero_s: float) -> None:
        self.process, self.pid, self._zero_s = process, pid, zero_s
        self._names = [json.dumps(name) for name in process.names]
        self.slices: dict[int, Slices] = {}

    def nanoseconds(self, seconds: Numbers) -> Integers:
        """Convert times of the process to whole nanoseconds since the beginning of the picture."""
        return np.asarray(np.rint((seconds + (self.process.shift_s - self._zero_s)) * 1e9).astype(np.int64))

    def heads(self, *, num_epochs: int) -> Iterator[str]:
        """The events that name the process and its tracks."""
        p = self.process
        title = p.group + (f", epoch {p.epoch}" if num_epochs > 1 else "") + (f", start {p.restarts + 1}" if p.restarts else "")
        yield meta("process_name", self.pid, name=title)
        yield meta("process_labels", self.pid, labels=f"{p.host} process {p.pid}")
        yield meta("process_sort_index", self.pid, sort_index=self.pid)
        for track, worker in enumerate(p.tracks):
            yield meta("thread_name", self.pid, track + 1, name=worker)
            yield meta("thread_sort_index", self.pid, track + 1, sort_index=track)

    def events(self) -> Iterator[str]:
        """Slices track by track, then counters and instants."""
        spans, waits = self.process.of_kind(SPAN), self.process.of_kind(WAIT)
        for track in range(len(self.process.tracks)):
            yield from self._track(track, spans[tracks_of(spans) == track], waits[tracks_of(waits) == track])
        yield from self._counters(self.process.of_kind(COUNT))
        yield from self._instants(self.process.of_kind(INSTANT))

    def _track(self, track: int, spans: Numbers, waits: Numbers) -> Iterator[str]:
        rows = np.concatenate([spans, waits])
        start, end = self.nanoseconds(rows[:, 1]), self.nanoseconds(rows[:, 2])
        order = np.lexsort((-end, start))  # of two that start together the longer one first: viewers nest by order
        own = sorted(zip(start[: len(spans)].tolist(), end[: len(spans)].tolist(), strict=True))
        self.slices[track] = Slices([s for s, _ in own], [e for _, e in own])
        names = names_of(rows)
        tail = f'"pid":{self.pid},"tid":{track + 1}'
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
        times, tracks = self.nanoseconds(rows[:, 1]).tolist(), tracks_of(rows).tolist()
        if self.process.restarts:
            start = self.nanoseconds(np.array([self.process.clocks[0][0]])).tolist()[0]
            yield instant(f"{self.process.group} was started again", start, self.pid, 1)
        for name, t, track in zip(names_of(rows).tolist(), times, tracks, strict=True):
            yield instant(self.process.names[name], t, self.pid, track + 1)


def instant(name: str, t: int, pid: int, tid: int) -> str:
    """An event without a length. In process 1 (the launcher) it is drawn across the whole picture."""
    scope = "g" if pid == 1 else "p"
    return f'{{"ph":"i","s":"{scope}","cat":"event","name":{json.dumps(name)},"ts":{micro(t)},"pid":{pid},"tid":{tid}}}'


def meta(what: str, pid: int, tid: int = 0, **args: str | int) -> str:
    """An event that names or orders a process or a track."""
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args})


def micro(nanoseconds: int) -> str:
    """Nanoseconds as microseconds with three digits behind the point; no float, which would lose digits in a long run.

    >>> micro(1234567), micro(5)
    ('1234.567', '0.005')
    """
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"
