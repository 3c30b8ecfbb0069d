"""A run's metrics.jsonl as columns that grow with the file, and that are cached so that the next start of the board is quick.

To parse a row takes about 20 microseconds, so 200 runs of 100,000 rows would take minutes. Therefore each file is parsed once.
Its columns are written to a cache file, which the next start maps into memory; then only rows that were added since are parsed.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from runnel.track.collapse import open_collapses
from runnel.track.files import MAX_LINE, open_regular, size_of
from runnel.track.folder import Row
from runnel.track.history import Floats, is_number, is_sound
from runnel.track.sinks import scalars
from runnel.track.status import read_end

Ints = NDArray[np.int32]
AXES = ("version", "steps", "samples", "tokens", "wall_s")
NUM_EVENTS = 500
"""Most events that are kept, the newest."""
NUM_PROBLEMS = 20
"""Most problems that are described; the others are only counted."""
MARK_BYTES = 512
"""Bytes at the beginning and before the end of what was read, of which `mark_of` is the hash."""
MAX_PEEK = 1 << 20
"""Longest line in bytes that a preview reads; longer ones appear only when the whole file is parsed."""
FORMAT = 6
"""Format of the cache file; a file of another format is made again."""


class Columns:
    """The content of metrics.jsonl so far. A metric is two columns: the rows that have it, and their values."""

    def __init__(self) -> None:
        self.offset = 0
        """Bytes of the file that were read."""
        self.num_rows = 0
        self.last: Row = {}
        self.last_eval: Row = {}
        self.end: Row = {}
        self.events: deque[Row] = deque(maxlen=NUM_EVENTS)
        self.collapses: list[Row] = []
        """Events that report a collapse that is not over. They are kept however many other events follow."""
        self.scaled: dict[str, int] = {}
        """The number of workers by kind, if somebody changed it since the run was started or resumed."""
        self.evals: list[Row] = []
        self.problems: list[str] = []
        self.num_problems = 0
        self.streams: Row = {}
        self._saved: list[str] = []
        """Names of the columns in the cache file, in order of appearance. Names of positions begin with @."""
        self._cache: Any = None
        """The open cache file. It is mapped into memory, so only columns that are shown are read from the disk."""
        self._tail: dict[str, tuple[array[int], array[float]]] = {}
        """Rows that are newer than the cache file."""
        self._num_lines = 0

    # -------------------------------------------------------------------------------------------------------------- reading
    def names(self) -> list[str]:
        """Metrics in order of appearance."""
        return [n for n in dict.fromkeys([*self._saved, *self._tail]) if not n.startswith("@")]

    def values(self, name: str) -> tuple[Ints, Floats]:
        """The rows that have a metric, and its values there."""
        rows, values = np.zeros(0, dtype=np.int32), np.zeros(0)
        if name in self._saved:
            rows, values = self._cache.get_tensor(f"rows {name}"), self._cache.get_tensor(f"values {name}").astype(np.float64)
        if name not in self._tail:
            return rows, values
        more_rows, more = self._tail[name]
        both = np.concatenate([rows, np.array(more_rows, dtype=np.int32)])
        return both, np.concatenate([values, np.array(more, dtype=np.float64)])

    def axis(self, name: str) -> Floats:
        """The position of each row: its `version`, `steps`, `samples`, `tokens` or `wall_s`."""
        return self.values(f"@{name}")[1]

    def curve(self, name: str, axis: str) -> tuple[Floats, Floats]:
        """The values of a metric over an axis."""
        rows, values = self.values(name)
        where = self.axis(axis)
        return (where[rows], values) if len(where) else (np.zeros(0), np.zeros(0))

    # -------------------------------------------------------------------------------------------------------------- writing
    def feed(self, data: bytes) -> int:
        """Parse what was added to the file; half a line at its end is left. Returns the number of bytes that were parsed."""
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            self._num_lines += 1
            if line.strip():
                self._line(line)
        self.offset += len(whole)
        return len(whole)

    def _line(self, line: bytes) -> None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return self._problem("is not readable")
        if not isinstance(row, dict) or not is_sound(row):
            return self._problem("has the wrong shape")
        self._add_row(row)

    def _problem(self, what: str) -> None:
        self.num_problems += 1
        if len(self.problems) < NUM_PROBLEMS:
            self.problems.append(f"metrics.jsonl line {self._num_lines} {what}; skipped")

    def _add_row(self, row: Row) -> None:
        kind = row["kind"]
        if kind == "event":
            self.events.append(row)
            if row.get("what") == "collapse":
                self.collapses = [dict(found) for found in open_collapses([*self.collapses, row])]
            self._add_scaling(row)
            return
        if kind == "end":
            self.end = read_end(row, str(self.events[-1].get("text", "")) if self.events else "")
            self.streams = dict(row.get("streams") or self.streams)
            return
        self.end = {}  # a row behind an end: the run was resumed
        if kind == "eval":
            self.last_eval = {k: v for k, v in row.items() if k not in ("samples", "kind")}
            self.evals.append({k: row[k] for k in ("version", "steps", "mean", "low", "high", "num") if k in row})
        else:
            self.last = {k: v for k, v in row.items() if k != "sample_ids"}
            self.streams = dict(row.get("streams") or {})
        self._position(row)
        for name, value in (scalars(row) | _load(row)).items():
            self._add(name, value)
        self.num_rows += 1

    def _add_scaling(self, row: Row) -> None:
        numbers = row.get("numbers")
        if row.get("what") == "order" and isinstance(numbers, dict):
            self.scaled |= {str(kind): int(num) for kind, num in numbers.items() if is_number(num)}
        elif row.get("what") == "resume":
            self.scaled = {}

    def _position(self, row: Row) -> None:
        # Each sample counts once: the accounts of further readers have names with a colon.
        counts: list[object] = [s.get("consumed") for k, s in self.streams.items() if isinstance(s, Mapping) and ":" not in k]
        samples = sum(int(c) for c in counts if is_number(c))
        wall = row.get("time", {}).get("wall_s")
        where = (row.get("version"), row.get("steps"), samples, row.get("tokens"), wall)
        for name, value in zip(AXES, where, strict=True):
            self._add(f"@{name}", float(value) if is_number(value) else 0.0)

    def _add(self, name: str, value: float) -> None:
        found = self._tail.get(name)
        if found is None:  # positions need 64 bits (tokens pass 2**24); for drawn values 32 are enough, and half the memory
            found = self._tail[name] = (array("i"), array("d" if name.startswith("@") else "f"))
        found[0].append(self.num_rows)
        found[1].append(value)

    # ---------------------------------------------------------------------------------------------------------------- cache
    def save(self, path: Path, mark: str) -> None:
        """Write all columns to a cache file. `mark` (from `mark_of`) shows later whether metrics.jsonl is still the same."""
        names = list(dict.fromkeys([*self._saved, *self._tail]))
        columns: dict[str, NDArray[np.generic]] = {}
        for name in names:
            columns[f"rows {name}"], values = self.values(name)
            columns[f"values {name}"] = values if name.startswith("@") else values.astype(np.float32)
        plain = {attribute: getattr(self, attribute) for attribute in _PLAIN} | {"events": list(self.events)}
        header = {"format": FORMAT, "mark": mark, "names": names, "num_lines": self._num_lines, **plain}
        temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
        save_file(columns, temporary, {"header": json.dumps(header)})
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path, metrics: Path) -> Columns | None:
        """Map the columns of a cache file; None if there is none that belongs to this metrics.jsonl."""
        try:
            cache: Any = safe_open(path, "numpy")
            header = json.loads(cache.metadata()["header"])
            if header["format"] != FORMAT or header["mark"] != mark_of(metrics, header["offset"]):
                return None
            self = cls()
            for name in _PLAIN:
                setattr(self, name, header[name])
            self.events.extend(header["events"])
            self._num_lines, self._saved, self._cache = header["num_lines"], header["names"], cache
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return None
        return self


def _load(row: Row) -> dict[str, float]:
    """The load of the machine, if the row has it."""
    system = row.get("time", {}).get("system")
    if not isinstance(system, Mapping):
        return {}
    found = {f"system/{name}": float(value) for name, value in system.items() if is_number(value)}
    gpus = system.get("gpus")
    for number, gpu in enumerate(gpus if isinstance(gpus, list) else []):
        found |= {f"system/gpu{number}/{name}": float(value) for name, value in gpu.items() if is_number(value)}
    return found


_PLAIN = (
    *("offset", "num_rows", "last", "last_eval", "end", "evals"),
    *("problems", "num_problems", "streams", "collapses", "scaled"),
)
"""Attributes that the cache file holds as JSON."""


def mark_of(metrics: Path, offset: int) -> str:
    """A hash of the beginning of the file and of what stands before `offset`. If it differs, the file is another one, or a
    resume has cut it back."""
    with open_regular(metrics) as file:
        head = file.read(min(MARK_BYTES, offset))
        file.seek(max(0, offset - MARK_BYTES))
        tail = file.read(min(MARK_BYTES, offset))
    return hashlib.sha256(f"{offset}|{len(tail)}|".encode() + head + b"|" + tail).hexdigest()


def read_blocks(path: Path, start: int, size: int = 1 << 22) -> Iterator[bytes]:
    """Blocks of whole lines, from byte `start` to the end of the last whole line.

    A line that is longer than any row is cut: what was read of it ends with a newline in place of its last byte. Such a row is
    damaged anyway, and memory is limited.
    """
    with open_regular(path) as file:
        file.seek(start)
        rest = b""
        while data := file.read(size):
            data = rest + data
            end = data.rfind(b"\n") + 1
            if not end and len(data) > MAX_LINE:
                data, end = data[:-1] + b"\n", len(data)
            if end:
                yield data[:end]
            rest = data[end:]


def index_file(metrics: str, cache: str) -> None:
    """Parse a whole file into its cache. This runs in a process of its own, so that the page stays quick meanwhile."""
    path, target = Path(metrics), Path(cache)
    columns = Columns.load(target, path) or Columns()
    for block in read_blocks(path, columns.offset):
        columns.feed(block)
    target.parent.mkdir(parents=True, exist_ok=True)
    columns.save(target, mark_of(path, columns.offset))


def preview(path: Path, num_rows: int = 160) -> Columns:
    """A preview of a large file from a few of its lines, to be shown while the whole file is parsed."""
    columns, size = Columns(), size_of(path)
    with open_regular(path) as file:
        for number in range(num_rows):
            file.seek(size * number // num_rows)
            if number:  # the place is within a line: skip its rest
                file.readline(MAX_PEEK)
            columns.feed(file.readline(MAX_PEEK))
        file.seek(max(0, size - (1 << 16)))
        columns.feed(file.read()[1 if size <= 1 << 16 else 0 :].partition(b"\n")[2])
    columns.problems.clear()
    columns.num_problems = 0
    return columns
