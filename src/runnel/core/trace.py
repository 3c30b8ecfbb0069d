"""Trace of one process: the stages of its workers, and marks for the segments and versions that they handle.

Tracing is cheap enough to leave on. Numbers go into one list, which is written once a second, as a block, to a file of the
run. Neighbouring spans of one stage are merged. A file is bounded: past `max_bytes`, or on a full disk, records are only
counted. Tracing only reads clocks, so it does not change a run. `track/trace/` makes a picture of the files.

A file is a line of JSON about the process, then blocks. A block is a line of JSON (new names and tracks,
this process's clock, the wall clock, the number of records) and the records, `RECORD` float64 each.
"""

from __future__ import annotations

import json
import os
import socket
import time
from array import array
from pathlib import Path

from runnel.core.clock import Clock
from runnel.core.state import JsonObject

FORMAT = 1
RECORD = 5
"""Numbers in a record: its code (kind, track and name), a time, and three more whose meaning depends on the kind."""
SPAN, WAIT, MARK, PUBLISH, LOAD, COUNT, INSTANT = range(7)
"""SPAN: end, seconds of work, pieces. WAIT (inside a span): end. MARK: sample id, version, rows. PUBLISH, LOAD: version.
COUNT: value. INSTANT: nothing."""
KINDS, LANES = 8, 4096
"""A code is `kind + KINDS * (track + LANES * name)`."""
FLUSH_S = 1.0
"""Time between two writes. A process that is killed loses the records since the last write."""
GAP_S = 1e-4
MERGE_S = 0.01
"""Spans of one stage with gaps below `GAP_S` are merged, up to this length."""


class TraceWriter:
    """Writes the trace file of one process. `close` writes the records that are still in memory."""

    def __init__(self, path: Path, clock: Clock, *, about: JsonObject | None = None, max_bytes: int = 64 << 20) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb", buffering=0)
        self._clock, self._max_bytes, self.now = clock, max_bytes, clock.now
        self.block: list[float] = []
        """Numbers of records that are not written yet. Tracks append to it, and call `flush` when the time is `due`."""
        self._names: dict[str, int] = {}
        self._tracks: list[TraceTrack] = []
        self._told = (0, 0)
        self.due = clock.now() + FLUSH_S
        self.left_out = 0
        """Number of records that were dropped because the file was full."""
        head = {"runnel_trace": FORMAT, **whereabouts(), **(about or {}), "clock": [clock.now(), time.time()]}
        self._size = self._file.write(_line(head))

    def track(self, worker: str) -> TraceTrack:
        """The track of a worker; it is made on the first call."""
        track = next((track for track in self._tracks if track.worker == worker), None)
        if track is None:
            track = TraceTrack(self, worker, len(self._tracks))
            self._tracks.append(track)
        return track

    def name(self, text: str) -> int:
        """The index of a name. Each name is written to the file once."""
        return self._names.setdefault(text, len(self._names))

    def flush(self) -> None:
        """Write the records in memory, unless the file is full. The span that is still open stays in memory."""
        now = self._clock.now()
        self.due = now + FLUSH_S
        num, names, tracks = len(self.block) // RECORD, list(self._names), [track.worker for track in self._tracks]
        data = array("d", self.block).tobytes()
        self.block.clear()
        if self._size + len(data) > self._max_bytes:
            self.left_out += num
            num, data = 0, b""
        # the files say `lanes`: traces of older runs do, and a resumed run adds to its old file
        head = {"n": num, "clock": [now, time.time()], "names": names[self._told[0] :], "lanes": tracks[self._told[1] :]}
        if self.left_out:
            head |= {"left_out": self.left_out}
        if data or self._told != (len(names), len(tracks)):
            self._size += self._write(_line(head) + data)
            self._told = len(names), len(tracks)

    def _write(self, data: bytes) -> int:
        """Write to the file; returns the bytes written. If that fails, the file counts as full and the run continues."""
        try:
            return self._file.write(data)
        except OSError:
            self._max_bytes = 0
            return 0

    def close(self) -> None:
        if self._file.closed:
            return
        for track in self._tracks:
            track.end()
        self.flush()
        if self.left_out:
            self._write(_line({"n": 0, "left_out": self.left_out}))
        self._file.close()


class TraceTrack:
    """The records of one worker."""

    def __init__(self, recorder: TraceWriter, worker: str, number: int) -> None:
        self.recorder, self.worker, self._number = recorder, worker, number
        self.record, self.now = recorder.block.extend, recorder.now
        """Fast path for frequent records: `record((code, now(), a, b, c))`. The next span writes them to the file."""
        self._spans: dict[str, int] = {}
        self._wait = self.code(WAIT, "wait")
        self._name, self._code = "", 0
        self._start = self._end = self._busy = 0.0
        self._pieces = 0

    def code(self, kind: int, name: str) -> int:
        """The code of records of a kind under a name."""
        return kind + KINDS * (self._number + LANES * self.recorder.name(name))

    def span(self, name: str, start: float, end: float, busy: float) -> None:
        """Record a finished stage. It worked for `busy` seconds; the rest of the time it waited."""
        if name == self._name and start - self._end < GAP_S and end - self._start < MERGE_S:
            self._end = end
            self._busy += busy
            self._pieces += 1
            return
        if self._name:  # the same as `end`, inlined: this runs several times in each poll
            self.record((self._code, self._start, self._end, self._busy, self._pieces))
            if end > self.recorder.due:
                self.recorder.flush()
        code = self._spans.get(name)
        if code is None:
            code = self._spans[name] = self.code(SPAN, name)
        self._name, self._code, self._start, self._end, self._busy, self._pieces = name, code, start, end, busy, 1

    def end(self) -> None:
        """Record the open span, which could still have been merged with the next one."""
        if self._name:
            self.record((self._code, self._start, self._end, self._busy, self._pieces))
            self._name = ""

    def wait(self, start: float, end: float) -> None:
        """Record time inside a stage during which the worker waited for others."""
        self.record((self._wait, start, end, 0.0, 0.0))

    def put(self, code: int, a: float = 0.0, b: float = 0.0, c: float = 0.0) -> None:
        """Record numbers at the current time."""
        t = self.now()
        self.record((code, t, a, b, c))
        if t > self.recorder.due:
            self.recorder.flush()

    def count(self, name: str, value: float) -> None:
        """Record the value of a number that changes over time."""
        self.put(self.code(COUNT, name), value)

    def instant(self, text: str) -> None:
        """Record an event without a duration."""
        self.put(self.code(INSTANT, text))


def whereabouts() -> JsonObject:
    """Process and machine. Processes with the same `boot` id share one clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot or socket.gethostname()}


def _line(data: JsonObject) -> bytes:
    return json.dumps(data).encode() + b"\n"
