"""A ring of items whose number is not known beforehand: frames, and final observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.data.memory import Memory

Array = NDArray[Any]
SLACK = 32
"""A ring of pooled items has room for one in this many more than it had to hold, since episodes do not end evenly."""
_MOVED_AT_ONCE = 1024


class Pool:
    """Items that go out in the order they came in, in a ring. An item's id counts all items ever pushed.

    Addresses are reserved for `most` items, which take no memory before they are written to; the ring is as long as it had to
    be so far, and `SLACK` more, so that memory follows what is kept.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, memory: Memory, most: int) -> None:
        self._memory, self._data = memory, memory.reserve((most, *shape), dtype)
        self.first = self.stop = self.size = 0
        self._start = 0
        """An id whose place is the first of the ring."""

    @property
    def num_bytes(self) -> int:
        return self._data[: self.size].nbytes

    def push(self, items: Array) -> int:
        """Keep `items` `[n, ...]`; returns the id of the first."""
        start, self.stop = self.stop, self.stop + len(items)
        if self.stop - self.first > self.size:
            self._grow(start, self.stop - self.first)
        self.write(start, items)
        return start

    def drop(self, num: int) -> None:
        """Forget the oldest `num` items."""
        if num and self.first == 0:  # the ring turns from now on; while it has not, more room costs no moving
            self._grow(self.stop, self.size)
        self.first += num

    def take(self, ids: Array, out: Array | None = None) -> Array:
        """The items `ids` `[n] -> [n, ...]`."""
        return self._data.take(self._places(ids), axis=0, out=out, mode="clip")

    def _places(self, ids: Any) -> Any:
        return (ids - self._start) % self.size

    def read(self, start: int, stop: int) -> Array:
        """The items `start ... stop - 1`: a view of the memory, unless they lie around its end."""
        if start == stop:
            return self._data[:0]
        where, num = self._places(start), stop - start
        ahead = self._data[where : min(where + num, self.size)]
        return ahead if len(ahead) == num else np.concatenate([ahead, self._data[: num - len(ahead)]])

    def write(self, start: int, items: Array) -> None:
        """Put the items `start ...` where they belong."""
        if not len(items):
            return
        where = self._places(start)
        ahead = items[: self.size - where]
        self._data[where : where + len(ahead)] = ahead
        self._data[: len(items) - len(ahead)] = items[len(ahead) :]

    def _grow(self, stop: int, need: int) -> None:
        """A ring with room for `need` items, of which those before `stop` are there. What was pushed before the ring began its
        newest lap lies at its end, and moves up to the new end, the last items first."""
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
        """Make room as `counts` says; the items come after, by `write`. A ring may be laid out anew: ids say what is where."""
        _, self.first, self.stop = counts
        self.size, self._start = 0, self.first
        self._grow(self.first, self.stop - self.first)
