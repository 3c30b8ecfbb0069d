"""Stores the observations of a ring of segments: each one once, and of a frame stack only the newest frame.

A segment has T + 1 observations for T steps, so the next observation of a step is the following entry. Only at the end of an
episode it is another one, the final observation. Those are few and lie in a pool beside the ring. Entry e of the ring is
`obs[e]`, and final observation f has the number `-1 - f`, so that one array of numbers names what followed each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.spaces import ArraySpec
from runnel.core.state import Array, State
from runnel.data.memory import Memory
from runnel.data.pool import SLACK, Pool

STEPS_AN_END = 32
"""The memory plan assumes an episode's end in so many steps: a random policy on Breakout. Longer episodes need a few percent
less; for shorter ones `SegmentStore` checks again while it fills."""


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy type of a torch type."""
    return torch.zeros(0, dtype=dtype).numpy().dtype


class PlainLeaf:
    """One leaf of the observations of all stored segments, stored as it is."""

    def __init__(self, num_slots: int, per_slot: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, memory: Memory) -> None:
        self._memory, self._data = memory, memory.zeros((num_slots, per_slot, *shape), dtype)
        self._flat = self._data.reshape(-1, *shape)
        self._final = Pool(shape, dtype, memory=memory, most=num_slots * per_slot)
        self._span = np.zeros((num_slots, 2), dtype=np.int64)
        self._frames: Array | None = None
        """Spans of frames of a checkpoint in which this leaf was kept as a stack."""

    def put(self, slot: int, obs: Array, final: Array, after: Array) -> int:
        """Store `obs` `[T + 1, B, ...]` in `slot`, and `final` `[F, ...]`, which followed the entries `after` `[F]` of `obs`
        (counted in the segment). Returns the id of the first final observation."""
        self._memory.will_fill(self._data, slot + 1)
        self._data[slot] = obs.reshape(self._data.shape[1:])
        first = self._final.push(final)
        self._span[slot] = first, self._final.stop
        return first

    def forget(self, slot: int) -> None:
        """Free the pooled items of the oldest segment, in `slot`, which is about to be overwritten."""
        self._final.drop(int(self._span[slot, 1] - self._span[slot, 0]))

    def take(self, entries: Array, out: Array) -> None:
        """Write observations of the ring, by entry, into `out`. `[n], [n, ...]`"""
        self._flat.take(entries, axis=0, out=out, mode="clip")

    def follow(self, where: Array, out: Array) -> None:
        """Write observations of the ring (0 and above) or final ones (below 0) into `out`. `[n], [n, ...]`"""
        self._flat.take(where, axis=0, out=out, mode="clip")
        final = np.flatnonzero(where < 0)
        if len(final):
            out[final] = self._final.take(-1 - where[final])

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays when every slot has been written."""
        return self._data.nbytes + self._final.num_bytes + self._span.nbytes

    @property
    def pooled_bytes(self) -> int:
        """The part of `num_bytes` that depends on the data: frames, and final observations."""
        return self._final.num_bytes

    def counts(self) -> State:
        """The positions of all observations, without the observations."""
        return {"span": self._span.copy(), "final": self._final.counts()}

    def recount(self, state: State) -> None:
        """Restore the positions of `counts`; `load` brings the observations."""
        self._frames = state["span"] if "frames" in state else None
        state = state["ids"] if "frames" in state else state
        self._span[:] = state["span"]
        self._final.resize(state["final"])

    def save(self, start: int, stop: int) -> dict[str, Array]:
        """The arrays of slots `start ... stop - 1`, in order of insertion; views where possible."""
        final = self._final.read(int(self._span[start, 0]), int(self._span[stop - 1, 1]))
        return {"data": self._data[start:stop], "final": final}

    def load(self, start: int, stop: int, arrays: Mapping[str, Array]) -> None:
        """Undo `save`."""
        data, final = arrays["data"], arrays["final"]
        if self._frames is not None:  # numbers of frames; those of a slot lie in the span of it
            frames, first = arrays["frames"], int(self._frames[start, 0])
            data, final = frames[data - first], frames[final - first]
        self._memory.will_fill(self._data, stop)
        self._data[start:stop] = data.reshape(self._data[start:stop].shape)
        self._final.write(int(self._span[start, 0]), final.reshape(-1, *self._flat.shape[1:]))


class StackedLeaf:
    """A `PlainLeaf` of stacks of k frames `[k * C, H, W]`, to which each step adds one: it stores single frames, and k frame
    ids for each entry.

    It compares each stack with the one before it and does not assume that only one frame is new. Where that is not so (at the
    start of a segment or an episode, or if it is no stack at all) it stores all k frames, and equal neighbours once. So the
    stored data are exact in every case.
    """

    def __init__(
        self, num_slots: int, num_steps: int, num_rows: int, spec: ArraySpec, *, memory: Memory, name: str = "obs"
    ) -> None:
        self._name, self._stack, self._shape = name, spec.stack, (num_steps, num_rows)
        entries = num_steps * num_rows
        channels = spec.shape[0] // spec.stack
        self._frame = spec.shape[1:] if channels == 1 else (channels, *spec.shape[1:])
        self._ids = PlainLeaf(num_slots, entries, (self._stack,), np.dtype(np.int64), memory=memory)
        most = num_slots * self._stack * 2 * entries  # the worst case: no frame shared, and an end at every step
        self._frames = Pool(self._frame, numpy_dtype(spec.dtype), memory=memory, most=most)
        self._span = np.zeros((num_slots, 2), dtype=np.int64)

    def put(self, slot: int, obs: Array, final: Array, after: Array) -> int:
        obs, final = obs.reshape(*self._shape, self._stack, *self._frame), final.reshape(-1, self._stack, *self._frame)
        start = self._frames.stop
        ids = self._push_ring(obs)
        first = self._ids.put(slot, ids, self._push_final(obs, ids, final, after), after)
        self._span[slot] = start, self._frames.stop
        return first

    def _push_ring(self, obs: Array) -> Array:
        """Keep the frames of `obs` `[T1, B, k, ...]`, time by time; returns their ids `[T1, B, k]`."""
        ids = np.empty(obs.shape[:3], dtype=np.int64)
        for t, stacks in enumerate(obs):
            moved = _moved(obs[t - 1], stacks) if t else np.zeros(len(stacks), dtype=bool)
            ids[t] = self._push(stacks, moved, ids[t - 1] if t else ids[t])
        return ids

    def _push_final(self, obs: Array, ids: Array, final: Array, after: Array) -> Array:
        before = obs.reshape(-1, *obs.shape[2:])[after]
        return self._push(final, _moved(before, final), ids.reshape(-1, self._stack)[after])

    def _push(self, stacks: Array, moved: Array, before: Array) -> Array:
        """Store stacks `[n, k, ...]`. Where one has `moved` on by a frame from ids `before` `[n, k]`, store its newest frame.

        Of the others, store every frame that differs from its left neighbour: an episode begins with one frame repeated, or
        with black ones.
        """
        begun = ~moved
        fresh = np.ones((len(stacks), self._stack), dtype=bool)
        fresh[:, :-1] = False
        if begun.any():
            some = stacks[begun]
            fresh[begun, 0], fresh[begun, 1:] = True, _differ(some[:, 1:], some[:, :-1])
        first = self._frames.push(stacks[fresh])
        ids = np.zeros(fresh.shape, dtype=np.int64)
        ids[fresh] = np.arange(first, self._frames.stop)
        # a frame equal to its left neighbour has id 0 so far, and takes the id of that one
        ids[begun] = np.maximum.accumulate(ids[begun], axis=1)
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
        self._frames.take(ids.reshape(-1), out.reshape(-1, *self._frame))

    @property
    def num_bytes(self) -> int:
        return self._ids.num_bytes + self._frames.num_bytes + self._span.nbytes

    @property
    def pooled_bytes(self) -> int:
        return self._ids.pooled_bytes + self._frames.num_bytes

    def counts(self) -> State:
        return {"ids": self._ids.counts(), "span": self._span.copy(), "frames": self._frames.counts()}

    def recount(self, state: State) -> None:
        if "frames" not in state:
            raise self._other_layout()
        self._ids.recount(state["ids"])
        self._span[:] = state["span"]
        self._frames.resize(state["frames"])

    def save(self, start: int, stop: int) -> dict[str, Array]:
        frames = self._frames.read(int(self._span[start, 0]), int(self._span[stop - 1, 1]))
        return {**self._ids.save(start, stop), "frames": frames}

    def load(self, start: int, stop: int, arrays: Mapping[str, Array]) -> None:
        if (arrays["data"].shape[-1], arrays["frames"].shape[1:]) != (self._stack, self._frame):
            raise self._other_layout()
        self._ids.load(start, stop, arrays)
        self._frames.write(int(self._span[start, 0]), arrays["frames"])

    def _other_layout(self) -> ConfigError:
        fix = "resume with replay.compress_frames=false, which reads both"
        return ConfigError("replay.compress_frames", True, f"the checkpoint keeps {self._name!r} in another layout; {fix}")


Leaf = PlainLeaf | StackedLeaf


def _differ(a: Array, b: Array) -> Array:
    """Which frames differ. `[n, k, ...] -> [n, k] bool`"""
    found: Array = (a != b).any(axis=tuple(range(2, a.ndim)))
    return found


def _moved(before: Array, stacks: Array) -> Array:
    """Which stacks `[n, k, ...]` equal those `before`, moved on by one frame. `-> [n] bool`"""
    same: Array = (before[:, 1:] == stacks[:, :-1]).all(axis=tuple(range(1, stacks.ndim)))
    return same


def is_stack(spec: ArraySpec) -> bool:
    """Whether a leaf is marked as a stack of frames. The shape cannot tell: colour images and boards have the same."""
    return spec.stack > 1 and spec.shape[0] % spec.stack == 0


def leaf_bytes(specs: Mapping[str, ArraySpec], num_rows: int, num_steps: int, *, compress: bool) -> int:
    """Bytes of `num_rows` rows of `num_steps` observations, with one final observation in `STEPS_AN_END` steps."""
    entries, ends = num_rows * num_steps, num_rows * num_steps / STEPS_AN_END
    total = 0.0
    for spec in specs.values():
        size, k = numpy_dtype(spec.dtype).itemsize * int(np.prod(spec.shape)), spec.stack
        if compress and is_stack(spec):
            # a row begins with k frames; an end brings the last frame, and the first of the next episode behind a black one
            frames = entries + num_rows * (k - 1) + 2 * ends
            total += frames * (1 + 1 / SLACK) * (size // k) + (entries + ends) * k * 8
        else:
            total += (entries + ends * (1 + 1 / SLACK)) * size
    return int(total)
