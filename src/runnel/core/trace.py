"""What a process records of its own time line: stages of its workers, and marks of what passed through their hands.

Cheap enough to leave on: numbers go into one list, and from there, once a second, in blocks to a file of the run's folder;
neighbouring pieces of the same stage become one. A file is bounded: past `max_bytes`, or where the disk is full, nothing more
is recorded, and how much that was is counted. Recording reads clocks and nothing else, so a run is the same with and without.
`track/trace/` makes a picture of the files.

A file is a line of JSON about the process, then blocks: a line of JSON (what is new in the tables of names and tracks, the
clock here and that of the world, the number of records) and the records, `RECORD` float64 each.
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
"""Numbers of a record: its code (kind, track and name), a time, and three more that the kind explains."""
SPAN, WAIT, MARK, PUBLISH, LOAD, COUNT, INSTANT = range(7)
"""SPAN: end, seconds of work, pieces. WAIT (inside a span): end. MARK: sample id, version, rows. PUBLISH, LOAD: version.
COUNT: value. INSTANT: nothing."""
KINDS, LANES = 8, 4096
"""A code is `kind + KINDS * (track + LANES * name)`."""
FLUSH_S = 1.0
"""What was recorded for so long is written together; a process that is killed loses it."""
GAP_S = 1e-4
MERGE_S = 0.01
"""Pieces of one stage with less than `GAP_S` between them are one, up to this length."""


class TraceWriter:
    """The file of one process. `close` it: what is still in memory is written then."""

    def __init__(self, path: Path, clock: Clock, *, about: JsonObject | None = None, max_bytes: int = 64 << 20) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb", buffering=0)
        self._clock, self._max_bytes, self.now = clock, max_bytes, clock.now
        self.block: list[float] = []
        """Numbers of records that are not written yet; tracks put theirs in, and `flush` when it is `due`."""
        self._names: dict[str, int] = {}
        self._tracks: list[TraceTrack] = []
        self._told = (0, 0)
        self.due = clock.now() + FLUSH_S
        self.left_out = 0
        """Records past `max_bytes`."""
        head = {"runnel_trace": FORMAT, **whereabouts(), **(about or {}), "clock": [clock.now(), time.time()]}
        self._size = self._file.write(_line(head))

    def track(self, worker: str) -> TraceTrack:
        """The track of a worker: its own track in the picture."""
        track = next((track for track in self._tracks if track.worker == worker), None)
        if track is None:
            track = TraceTrack(self, worker, len(self._tracks))
            self._tracks.append(track)
        return track

    def name(self, text: str) -> int:
        """The number of a name; each is written once."""
        return self._names.setdefault(text, len(self._names))

    def flush(self) -> None:
        """Write what is in memory (not the span that goes on), unless the file is full."""
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
        """A trace is not worth a run: where it cannot be written, the file counts as full."""
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
    """What one worker records."""

    def __init__(self, recorder: TraceWriter, worker: str, number: int) -> None:
        self.recorder, self.worker, self._number = recorder, worker, number
        self.record, self.now = recorder.block.extend, recorder.now
        """For those who record often: `record((code, now(), a, b, c))`. The next span sees to the writing."""
        self._spans: dict[str, int] = {}
        self._wait = self.code(WAIT, "wait")
        self._name, self._code = "", 0
        self._start = self._end = self._busy = 0.0
        self._pieces = 0

    def code(self, kind: int, name: str) -> int:
        """The code of records of a kind under a name."""
        return kind + KINDS * (self._number + LANES * self.recorder.name(name))

    def span(self, name: str, start: float, end: float, busy: float) -> None:
        """A stage that has ended, `busy` seconds of which were its own."""
        if name == self._name and start - self._end < GAP_S and end - self._start < MERGE_S:
            self._end = end
            self._busy += busy
            self._pieces += 1
            return
        if self._name:  # what `end` does, without a call
            self.record((self._code, self._start, self._end, self._busy, self._pieces))
            if end > self.recorder.due:
                self.recorder.flush()
        code = self._spans.get(name)
        if code is None:
            code = self._spans[name] = self.code(SPAN, name)
        self._name, self._code, self._start, self._end, self._busy, self._pieces = name, code, start, end, busy, 1

    def end(self) -> None:
        """Write the span that is still open to neighbours."""
        if self._name:
            self.record((self._code, self._start, self._end, self._busy, self._pieces))
            self._name = ""

    def wait(self, start: float, end: float) -> None:
        """Time inside a stage that went by for others."""
        self.record((self._wait, start, end, 0.0, 0.0))

    def put(self, code: int, a: float = 0.0, b: float = 0.0, c: float = 0.0) -> None:
        """A record of now."""
        t = self.now()
        self.record((code, t, a, b, c))
        if t > self.recorder.due:
            self.recorder.flush()

    def count(self, name: str, value: float) -> None:
        """A number that changes over time."""
        self.put(self.code(COUNT, name), value)

    def instant(self, text: str) -> None:
        """Something that happened."""
        self.put(self.code(INSTANT, text))


def whereabouts() -> JsonObject:
    """Process and machine; processes of one `boot` have one clock."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot or socket.gethostname()}


def _line(data: JsonObject) -> bytes:
    return json.dumps(data).encode() + b"\n"
