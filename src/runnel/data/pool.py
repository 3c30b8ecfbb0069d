"""A ring buffer of items whose number is not known beforehand: frames, and final observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from runnel.core.state import Array
from runnel.data.memory import Memory

Ids = TypeVar("Ids", int, Array)
SLACK = 32
"""A ring of pooled items has room for one in this many more than it had to hold, since episodes do not end evenly."""
_MOVED_AT_ONCE = 1024
"""Number of items. Where source and target overlap, numpy first copies the items: a copy of all might not fit into memory."""


class Pool:
    """A ring buffer that drops items in the order of their arrival. An item's id counts all items ever pushed.

    Addresses are reserved for `most` items, which take no memory until they are written. The ring is only as long as it has had
    to be so far, plus `SLACK`, so that memory follows the number of items.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, memory: Memory, most: int) -> None:
        self._memory, self._data = memory, memory.reserve((most, *shape), dtype)
        self.first = self.stop = self.size = 0
        self._start = 0
        """The id of the item at the first place of the ring (in its newest lap)."""

    @property
    def num_bytes(self) -> int:
        return self._data[: self.size].nbytes

    def push(self, items: Array) -> int:
        """Add `items` `[n, ...]`. Returns the id of the first."""
        start, self.stop = self.stop, self.stop + len(items)
        if self.stop - self.first > self.size:
            self._grow(start, self.stop - self.first)
        self.write(start, items)
        return start

    def drop(self, num: int) -> None:
        """Drop the oldest `num` items."""
        if num and self.first == 0:  # the ring starts to wrap: take all slack now, while growing moves nothing
            self._grow(self.stop, self.size)
        self.first += num

    def take(self, ids: Array, out: Array | None = None) -> Array:
        """The items `ids` `[n] -> [n, ...]`."""
        return self._data.take(self._places(ids), axis=0, out=out, mode="clip")

    def _places(self, ids: Ids) -> Ids:
        return (ids - self._start) % self.size

    def read(self, start: int, stop: int) -> Array:
        """The items `start ... stop - 1`: a view, unless they wrap around the end of the memory."""
        if start == stop:
            return self._data[:0]
        where, num = self._places(start), stop - start
        ahead = self._data[where : min(where + num, self.size)]
        return ahead if len(ahead) == num else np.concatenate([ahead, self._data[: num - len(ahead)]])

    def write(self, start: int, items: Array) -> None:
        """Write `items` at the places of ids `start ...`."""
        if not len(items):
            return
        where = self._places(start)
        ahead = items[: self.size - where]
        self._data[where : where + len(ahead)] = ahead
        self._data[: len(items) - len(ahead)] = items[len(ahead) :]

    def _grow(self, stop: int, need: int) -> None:
        """Enlarge the ring to `need` items and slack; the items before `stop` are in it.

        Items of the previous lap lie at the end of the ring. They move up to the new end, the last ones first, so that none
        is overwritten before it has moved.
        """
        slack = need // SLACK if self.first or stop == self.stop else 0
        size, newest = min(need + slack, len(self._data)), max(stop - 1, self.first)
        self._memory.will_fill(self._data, size)
        lap = newest - self._places(newest) if self.size else newest
        older, up = max(0, lap - self.first), size - self.size
        for end in range(self.size, self.size - older, -_MOVED_AT_ONCE):
            begin = max(end - _MOVED_AT_ONCE, self.size - older)
            self._data[begin + up : end + up] = self._data[begin:end]
        self._start, self.size = lap, size

    def counts(self) -> list[int]:
        return [self.size, self.first, self.stop]

    def resize(self, counts: Sequence[int]) -> None:
        """Make room for the items of `counts`; `write` brings them. Their places may differ from before, their ids do not."""
        _, self.first, self.stop = counts
        self.size, self._start = 0, self.first
        self._grow(self.first, self.stop - self.first)
