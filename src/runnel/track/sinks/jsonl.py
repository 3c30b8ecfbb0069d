"""metrics.jsonl: one JSON object a line, always written, the truth that every other view follows."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from runnel.core.disk import told_if_refused
from runnel.core.errors import DiskError
from runnel.track.cut import BLOCK, cut_rows
from runnel.track.folder import Row


class JsonlSink:
    """Appends one JSON object a line and flushes it, so that a killed run keeps all but its last line. The file is opened when
    the first row comes."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file: FileIO | None = None
        self._size, self._hash = 0, hashlib.sha256()

    def row(self, row: Row) -> None:
        self._write(encode(row).encode(errors="backslashreplace") + b"\n")

    def flush(self) -> None:
        """Nothing is kept back."""

    def mark(self) -> dict[str, Any]:
        """Bytes in the file, and their SHA-256: what a checkpoint stores."""
        self._open()
        return {"offset": self._size, "digest": self._hash.hexdigest()}

    def cut(self, mark: Mapping[str, Any], version: int) -> str:
        """Cut the file back to `mark`, of the checkpoint of `version`, and go on from there; what is lost of it, in words."""
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
            if self._size and last != b"\n":  # a killed run has left half a row
                self._write(b"\n")
        return self._file

    def _write(self, data: bytes) -> None:
        """All of `data`, or an error and nothing of it: a row that the disk has no room for leaves no half of it behind."""
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


def encode(row: Row) -> str:
    """One line of strict JSON: numpy scalars as numbers, and null for what is not finite.

    >>> encode({"loss": float("nan"), "n": np.int64(3)})
    '{"loss": null, "n": 3}'
    """
    try:
        return json.dumps(row, allow_nan=False, default=_plain, ensure_ascii=False)
    except ValueError:
        return json.dumps(_finite(row), allow_nan=False, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"a metrics row holds a {type(value).__name__}; give plain numbers, strings, lists and dicts")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return _finite(_plain(value))
    return None if isinstance(value, float) and not math.isfinite(value) else value
