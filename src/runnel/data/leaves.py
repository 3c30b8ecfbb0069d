"""Observations in a ring of segments: each is stored once, and a frame stack is stored as its newest frame.

A segment has T + 1 observations for T steps, so the next observation of a step is the one behind it. Only where an episode
ended is it another one, the final observation; those are few, and lie in a pool beside the ring. Entry e of the ring is
`obs[e]`; final observation f is called `-1 - f`, so that one array of numbers says what followed each step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from runnel.core.protocols import State
from runnel.core.spaces import ArraySpec
from runnel.data.memory import Memory

Array = NDArray[Any]
MAX_STACK = 16
"""The most frames that a stacked image may have."""


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy type of a torch type."""
    return torch.zeros(0, dtype=dtype).numpy().dtype


class Pool:
    """Items that go out in the order they came in. An item's id counts all items ever pushed; memory grows by doubling."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, memory: Memory, size: int = 64) -> None:
        self._memory = memory
        self._data = memory.zeros((size, *shape), dtype)
        self.first = self.stop = 0

    def push(self, items: Array) -> int:
        """Keep `items` `[n, ...]`; returns the id of the first."""
        start, self.stop = self.stop, self.stop + len(items)
        while self.stop - self.first > len(self._data):
            self._grow(start)
        self.write(start, items)
        return start

    def drop(self, num: int) -> None:
        """Forget the oldest `num` items."""
        self.first += num

    def take(self, ids: Array, out: Array | None = None) -> Array:
        """The items `ids` `[n] -> [n, ...]`."""
        return self._data.take(ids % len(self._data), axis=0, out=out, mode="clip")

    def read(self, start: int, stop: int) -> Array:
        """The items `start ... stop - 1`: a view of the memory, unless they lie around its end."""
        where, num = start % len(self._data), stop - start
        ahead = self._data[where : where + num]
        return ahead if len(ahead) == num else np.concatenate([ahead, self._data[: num - len(ahead)]])

    def write(self, start: int, items: Array) -> None:
        """Put the items `start ...` where they belong."""
        where = start % len(self._data)
        ahead = items[: len(self._data) - where]
        self._data[where : where + len(ahead)] = ahead
        self._data[: len(items) - len(ahead)] = items[len(ahead) :]

    def _grow(self, stop: int) -> None:
        old, size = self._data, len(self._data)
        self._data = self._memory.zeros((2 * size, *old.shape[1:]), old.dtype)
        for start in range(self.first, stop, 1024):
            ids = np.arange(start, min(start + 1024, stop))
            self._data[ids % (2 * size)] = old[ids % size]

    def counts(self) -> list[int]:
        return [len(self._data), self.first, self.stop]

    def resize(self, counts: Sequence[int]) -> None:
        """Make room as `counts` says; the items come after, by `write`."""
        size, self.first, self.stop = counts
        if size != len(self._data):
            self._data = self._memory.zeros((size, *self._data.shape[1:]), self._data.dtype)


class Leaf(Protocol):
    """One leaf of the observations of all stored segments."""

    def put(self, slot: int, obs: Array, final: Array, after: Array) -> int:
        """Store `obs` `[T + 1, B, ...]` in `slot`, and `final` `[F, ...]`, which followed the entries `after` `[F]` of `obs`
        (counted in the segment). Returns the id of the first final observation."""
        ...

    def forget(self, slot: int) -> None:
        """The oldest segment, in `slot`, is about to be overwritten."""
        ...

    def take(self, entries: Array, out: Array) -> None:
        """Observations of the ring, by entry. `[n] -> [n, ...]`"""
        ...

    def follow(self, where: Array, out: Array) -> None:
        """Observations of the ring (0 and above) or final ones (below). `[n] -> [n, ...]`"""
        ...

    def counts(self) -> State:
        """What is where, without the observations themselves."""
        ...

    def recount(self, state: State) -> None:
        """Undo `counts`; the observations come after, by `load`."""
        ...

    def save(self, start: int, stop: int) -> dict[str, Array]:
        """The arrays of slots `start ... stop - 1`, inserted one after the other; views where that is possible."""
        ...

    def load(self, start: int, stop: int, arrays: Mapping[str, Array]) -> None:
        """Undo `save`."""
        ...


class PlainLeaf:
    """A leaf that is stored as it is."""

    def __init__(self, num_slots: int, per_slot: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, memory: Memory) -> None:
        self._data = memory.zeros((num_slots, per_slot, *shape), dtype)
        self._flat = self._data.reshape(-1, *shape)
        self._final = Pool(shape, dtype, memory=memory)
        self._span = np.zeros((num_slots, 2), dtype=np.int64)

    def put(self, slot: int, obs: Array, final: Array, after: Array) -> int:
        self._data[slot] = obs.reshape(self._data.shape[1:])
        first = self._final.push(final)
        self._span[slot] = first, self._final.stop
        return first

    def forget(self, slot: int) -> None:
        self._final.drop(int(self._span[slot, 1] - self._span[slot, 0]))

    def take(self, entries: Array, out: Array) -> None:
        self._flat.take(entries, axis=0, out=out, mode="clip")

    def follow(self, where: Array, out: Array) -> None:
        self._flat.take(where, axis=0, out=out, mode="clip")
        final = np.flatnonzero(where < 0)
        if len(final):
            out[final] = self._final.take(-1 - where[final])

    def counts(self) -> State:
        return {"span": self._span.copy(), "final": self._final.counts()}

    def recount(self, state: State) -> None:
        self._span[:] = state["span"]
        self._final.resize(state["final"])

    def save(self, start: int, stop: int) -> dict[str, Array]:
        final = self._final.read(int(self._span[start, 0]), int(self._span[stop - 1, 1]))
        return {"data": self._data[start:stop], "final": final}

    def load(self, start: int, stop: int, arrays: Mapping[str, Array]) -> None:
        self._data[start:stop] = arrays["data"]
        self._final.write(int(self._span[start, 0]), arrays["final"])


class StackedLeaf:
    """A stack of k images `[k, H, W]`, of which each step brings one: kept as frames, and k frame ids for each entry.

    Whether a stack is the one before it, moved on by a frame, is looked at and not assumed. Where it is not (the start of a
    segment or an episode, or no stack at all) all k frames are kept. So what comes back is always what went in.
    """

    def __init__(self, num_slots: int, num_steps: int, num_rows: int, spec: ArraySpec, *, memory: Memory) -> None:
        self._stack, self._shape = spec.shape[0], (num_steps, num_rows)
        self._ids = PlainLeaf(num_slots, num_steps * num_rows, (self._stack,), np.dtype(np.int64), memory=memory)
        expected = num_slots * num_rows * (num_steps + self._stack - 1)
        self._frames = Pool(spec.shape[1:], numpy_dtype(spec.dtype), memory=memory, size=expected)
        self._span = np.zeros((num_slots, 2), dtype=np.int64)

    def put(self, slot: int, obs: Array, final: Array, after: Array) -> int:
        obs = obs.reshape(*self._shape, *obs.shape[-3:])
        start = self._frames.stop
        ids = self._push_ring(obs)
        first = self._ids.put(slot, ids, self._push_final(obs, ids, final, after), after)
        self._span[slot] = start, self._frames.stop
        return first

    def _push_ring(self, obs: Array) -> Array:
        """Keep the frames of `obs` `[T1, B, k, H, W]`, time by time; returns their ids `[T1, B, k]`."""
        ids = np.empty(obs.shape[:3], dtype=np.int64)
        for t, stacks in enumerate(obs):
            moved = _moved(obs[t - 1], stacks) if t else np.zeros(len(stacks), dtype=bool)
            ids[t] = self._push(stacks, moved, ids[t - 1] if t else ids[t])
        return ids

    def _push_final(self, obs: Array, ids: Array, final: Array, after: Array) -> Array:
        before = obs.reshape(-1, *obs.shape[2:])[after]
        return self._push(final, _moved(before, final), ids.reshape(-1, self._stack)[after])

    def _push(self, stacks: Array, moved: Array, before: Array) -> Array:
        """Keep the newest frame of each stack `[n, k, H, W]` that has `moved` on from the ids `before` `[n, k]`, else all."""
        fresh = np.ones((len(stacks), self._stack), dtype=bool)
        fresh[moved, :-1] = False
        first = self._frames.push(stacks[fresh])
        ids = np.empty(fresh.shape, dtype=np.int64)
        ids[fresh] = np.arange(first, self._frames.stop)
        ids[moved, :-1] = before[moved, 1:]
        return ids

    def forget(self, slot: int) -> None:
        self._frames.drop(int(self._span[slot, 1] - self._span[slot, 0]))
        self._ids.forget(slot)

    def take(self, entries: Array, out: Array) -> None:
        ids = np.empty((len(entries), self._stack), dtype=np.int64)
        self._ids.take(entries, ids)
        self._show(ids, out)

    def follow(self, where: Array, out: Array) -> None:
        ids = np.empty((len(where), self._stack), dtype=np.int64)
        self._ids.follow(where, ids)
        self._show(ids, out)

    def _show(self, ids: Array, out: Array) -> None:
        self._frames.take(ids.reshape(-1), out.reshape(-1, *out.shape[2:]))

    def counts(self) -> State:
        return {"ids": self._ids.counts(), "span": self._span.copy(), "frames": self._frames.counts()}

    def recount(self, state: State) -> None:
        self._ids.recount(state["ids"])
        self._span[:] = state["span"]
        self._frames.resize(state["frames"])

    def save(self, start: int, stop: int) -> dict[str, Array]:
        frames = self._frames.read(int(self._span[start, 0]), int(self._span[stop - 1, 1]))
        return {**self._ids.save(start, stop), "frames": frames}

    def load(self, start: int, stop: int, arrays: Mapping[str, Array]) -> None:
        self._ids.load(start, stop, arrays)
        self._frames.write(int(self._span[start, 0]), arrays["frames"])


def _moved(before: Array, stacks: Array) -> Array:
    """Which stacks `[n, k, H, W]` are those `before`, moved on by one frame. `-> [n] bool`"""
    same: Array = (before[:, 1:] == stacks[:, :-1]).all(axis=(1, 2, 3))
    return same


def is_stack(spec: ArraySpec) -> bool:
    """Whether a leaf may be a stack of images: bytes `[k, H, W]` with a small k."""
    if len(spec.shape) != 3 or spec.dtype != torch.uint8:
        return False
    k, height, width = spec.shape
    return 1 < k <= MAX_STACK and min(height, width) > k


def leaf_bytes(specs: Mapping[str, ArraySpec], num_rows: int, num_steps: int, *, compress: bool) -> int:
    """Bytes of `num_rows` rows of `num_steps` observations, final ones not counted."""
    total = 0
    for spec in specs.values():
        size = numpy_dtype(spec.dtype).itemsize * int(np.prod(spec.shape))
        if compress and is_stack(spec):
            k = spec.shape[0]
            total += num_rows * ((num_steps + k - 1) * (size // k) + num_steps * k * 8)
        else:
            total += num_rows * num_steps * size
    return total
