"""metrics.jsonl: one JSON object a line, always written, the truth that every other view follows."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runnel.track.folder import Row


class JsonlSink:
    """Appends one JSON object a line and flushes it, so that a killed run keeps all but its last line."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._file = open(self.path, "ab")  # noqa: SIM115  (closed by close())
        if self.offset() and not self._ends_with_newline():
            self._file.write(b"\n")
            self._file.flush()

    def row(self, row: Row) -> None:
        self._file.write(encode(row).encode(errors="backslashreplace") + b"\n")
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def offset(self) -> int:
        """Bytes written so far: what a checkpoint stores."""
        self._file.flush()
        return self._file.seek(0, 2)

    def truncate(self, offset: int) -> int:
        """Cut the file back to `offset` and go on from there. Returns the bytes removed; negative: the file was shorter."""
        size = self.offset()
        if size > offset:
            self._file.truncate(offset)
            self._file.seek(0, 2)
        return size - offset

    def close(self) -> None:
        self._file.close()

    def _ends_with_newline(self) -> bool:
        with open(self.path, "rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"


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
