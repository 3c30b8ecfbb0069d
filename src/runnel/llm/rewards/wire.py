"""Messages between a reward pool and its workers: JSON behind a length of four bytes."""

from __future__ import annotations

import json
import struct
from typing import Any


def frame(message: Any) -> bytes:
    """A message as it travels; numpy numbers and arrays become plain ones."""
    data = json.dumps(message, default=_plain).encode()
    return struct.pack("!I", len(data)) + data


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


class Frames:
    """Puts the bytes of a stream together into messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def take(self) -> list[Any]:
        """The messages that are complete."""
        found = []
        while len(self._data) >= 4:
            (size,) = struct.unpack_from("!I", self._data)
            if len(self._data) < 4 + size:
                break
            found.append(json.loads(self._data[4 : 4 + size]))
            del self._data[: 4 + size]
        return found
