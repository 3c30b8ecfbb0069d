"""metrics.jsonl: one JSON object a line. It is always written, and all other views follow it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path

import numpy as np

from runnel.core.disk import told_if_refused
from runnel.core.errors import DiskError
from runnel.track.cut import BLOCK, FileMark, cut_rows
from runnel.track.folder import Row


class JsonlSink:
    """Appends one JSON object a line, without a buffer: a killed run keeps all but its last line. The file is opened at the
    first row."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: FileIO | None = None
        self._size, self._hash = 0, hashlib.sha256()

    def row(self, row: Row) -> None:
        self._write(line_of(row))

    def flush(self) -> None:
        """No-op: every row is written at once."""

    def mark(self) -> FileMark:
        """The end of the file now: its length and SHA-256, for a checkpoint."""
        self._open()
        return {"offset": self._size, "digest": self._hash.hexdigest()}

    def cut(self, mark: FileMark, version: int) -> str:
        """Cut the file back to `mark`, its end at the checkpoint of `version`. Returns a description of what is lost."""
        self.close()
        return cut_rows(self.path, mark, version)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> FileIO:
        if self._file is None:
            self._size, self._hash = 0, hashlib.sha256()
            with told_if_refused(self.path.parent):
                self._file = self.path.open("a+b", buffering=0)
            self._file.seek(0)
            while data := self._file.read(BLOCK):
                self._add(data)
                last = data[-1:]
            if self._size and last != b"\n":  # a kill left half a row: end it, or the next row would be damaged too
                self._write(b"\n")
        return self._file

    def _write(self, data: bytes) -> None:
        """Write all of `data`. If the disk is full, remove what was written of it and raise: no half row stays."""
        file, left = self._open(), memoryview(data)
        try:
            with told_if_refused(self.path):
                while left:
                    left = left[file.write(left) :]
        except DiskError:
            with suppress(OSError):
                file.truncate(self._size)
            raise
        self._add(data)

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        self._hash.update(data)


def line_of(row: Row) -> bytes:
    """A row as a line of a file. Lone surrogates, which UTF-8 cannot hold, are written as `\\udc80` and the like."""
    return encode(row).encode(errors="backslashreplace") + b"\n"


def encode(row: Row) -> str:
    """A row as one line of strict JSON: numpy scalars become numbers, numbers that are not finite become null.

    >>> encode({"loss": float("nan"), "n": np.int64(3)})
    '{"loss": null, "n": 3}'
    """
    try:
        return json.dumps(row, allow_nan=False, default=_plain, ensure_ascii=False)
    except ValueError:  # it holds NaN or infinity: rare, so only then is the row walked through
        return json.dumps(_finite(row), allow_nan=False, ensure_ascii=False)


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a metrics row holds a {type(value).__name__}; give plain numbers, strings, lists and dicts")


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return _finite(_plain(value))
    return None if isinstance(value, float) and not math.isfinite(value) else value
