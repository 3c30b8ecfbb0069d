"""A ring of whole segments with draws from it: what replay of transitions and of sequences have in common.

A segment of B environments and T steps is copied in as it is, over the oldest one. What is drawn is a *unit*: a transition
(T * B to a segment) or a row, one environment's T steps (B to a segment). Accounting is by row: a row counts as used once
anything of it was drawn.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.samples import Feedback
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Segment, Slot, StreamSpec
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.spaces import ArraySpec, EnvSpec
from runnel.core.state import Array, SealedChunk, State
from runnel.core.trajectories import REWARD
from runnel.data.leaves import Leaf, PlainLeaf, StackedLeaf, is_stack, leaf_bytes, numpy_dtype
from runnel.data.memory import Memory
from runnel.data.priorities import Priorities
from runnel.ops.targets import n_step_returns

MASK = "action_mask"
PIECE_BYTES = 64 << 20
"""A checkpoint writes each part of the memory of this size once, when it is full."""


@dataclass(frozen=True)
class ReplayConfig:
    """What to keep and how to draw from it."""

    on_resume: ClassVar[OnResume] = (
        may_change("beta", then="counts from the next batch on")
        | may_change("mmap_bytes", "mmap_dir", then="the memory is made there")
        | stays("capacity", "compress_frames", why="the replay memory in the checkpoint has that form")
        | stays("n_step", why="the returns in the replay memory are over so many steps")
        | stays("prioritised", "alpha", "min_priority", why="the priorities in the replay memory were made that way")
    )

    capacity: int = bounded(50_000, at_least=1)
    """Transitions kept; the oldest go first."""
    n_step: int = bounded(1, at_least=1)
    """Rewards that are summed before the target bootstraps (fewer at the end of an episode or of a segment, so keep `num_steps`
    several times as large)."""
    prioritised: bool = True
    """Draw by temporal-difference error (Schaul et al. 2016, arXiv:1511.05952); otherwise uniformly."""
    alpha: float = bounded(0.6, at_least=0)
    """How much priorities matter: 0 is uniform, 1 proportional to the error."""
    beta: float | str = scheduled(0.4)
    """How much importance weights undo the bias of prioritised draws: 0 not at all, 1 fully; or a schedule over the run, such
    as "linear(0.4, 1)"."""
    min_priority: float = bounded(1e-3, at_least=0)
    """Added to every error, so that no transition is never drawn again."""
    compress_frames: bool = True
    """Keep each frame of a stack once, where frames are stacked by vector.frame_stack, atari:, envpool: or Gymnasium's
    FrameStackObservation; what is drawn is bit for bit the same."""
    mmap_bytes: int = bounded(4 << 30, at_least=0)
    """From this size on, the memory is a file without a name, mapped into memory."""
    mmap_dir: str = ""
    """Folder on whose disk that file lies; empty: the system's folder for temporary files."""

    def check(self) -> None:
        """Raise a `ConfigError` for a memory that cannot work."""
        check_bounds(self, "replay.")
        if self.mmap_dir and not Path(self.mmap_dir).is_dir():
            raise ConfigError("replay.mmap_dir", self.mmap_dir, "there is no such folder; make it, or leave it empty")


class SegmentStore(ABC):
    """The ring, priorities and accounts behind a buffer worker; implements `core.contracts.samples.Store`.

    A unit's `index` counts all units ever inserted, so feedback about one that was overwritten meanwhile is recognised and
    ignored. `gamma` discounts inside returns of several steps; `total_steps` and `total_updates` are the length of the run (the
    budget that is set, or both), for `beta`: a draw is an update.
    """

    drawn: ClassVar[tuple[str, ...]]
    """Arrays `[T, B, ...]` of which a batch has the drawn steps, beside the environment's own channels."""

    def __init__(
        self,
        config: ReplayConfig,
        env: EnvSpec,
        *,
        source: StreamSpec,
        gamma: float,
        total_steps: int | None = None,
        total_updates: int | None = None,
    ) -> None:
        config.check()
        self.config, self.env, self.gamma = config, env, gamma
        self._channels = (REWARD, *env.channels.names)
        self._drawn = (*self.drawn, *env.channels.names)
        self._total_steps, self._total_updates = total_steps, total_updates
        self._steps, self._rows = source.sizes["T"], source.num_rows
        self._segment_steps = self._steps * self._rows
        self._num_slots = config.capacity // self._segment_steps
        if self._num_slots < 1:
            needed = self._segment_steps
            raise ConfigError(
                "replay.capacity", config.capacity, f"one segment has {needed} transitions; use at least {needed}"
            )
        self._units = self._units_per_segment()
        specs = {**env.obs, **({MASK: ArraySpec((env.action.mask_size,), torch.bool)} if env.has_mask else {})}
        memory = self._memory = self._plan(specs, source)
        self._leaves = {key: self._make_leaf(key, spec, memory) for key, spec in specs.items()}
        self._data = {
            key: memory.zeros((self._num_slots, *shape), dtype) for key, (shape, dtype) in self._arrays(source).items()
        }
        self._states = [key for key in self._data if key.startswith("state/")]
        self._flat = {k: x.reshape(-1, *x.shape[2 if k in self._states else 3 :]) for k, x in self._data.items()}
        self._priorities: Priorities | None = None
        if config.prioritised:
            size = self._num_slots * self._units
            self._priorities = Priorities(size, alpha=config.alpha, floor=config.min_priority)
        self._num_inserted = self._num_drawn = 0
        # the numbers of segments at which `_look_again` checks: early, and more exactly as the memory fills
        self._looks = {-(-self._num_slots // n) for n in (64, 8, 2)}
        self._selected = np.ones(self._num_slots * self._rows, dtype=bool)
        self._held = 0
        self._views: dict[int, tuple[int, dict[str, Array]]] = {}
        self._piece_slots = max(1, -(-PIECE_BYTES * self._num_slots // max(memory.num_bytes, 1)))
        self._names: dict[int, tuple[int, str]] = {}

    @abstractmethod
    def _units_per_segment(self) -> int: ...

    @abstractmethod
    def _fill(self, out: dict[str, Array], units: Array) -> dict[str, int]:
        """Write the data of `units` `[n]` to `out`; returns how much of each variable dim was used."""

    @abstractmethod
    def _rows_of(self, units: Array) -> Array:
        """The row (slot * B + b) that each unit belongs to."""

    # ---------------------------------------------------------------------------------------------------------- layout
    def _arrays(self, source: StreamSpec) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Arrays beside the observations, of one slot: of each step, and the recurrent state at the start of each row."""
        grid = (self._steps, self._rows)
        types = {"discount": np.float32, "ended": np.bool_, "last": np.int64, "following": np.int64}
        found = {}
        for key in (*self._drawn, "following"):
            known = key in types
            found[key] = (grid, np.dtype(types[key])) if known else (source.shape(key), numpy_dtype(source.fields[key].dtype))
        for key, f in source.fields.items():
            if key.startswith("state/"):
                found[key] = (source.shape(key), numpy_dtype(f.dtype))
        return found

    def _plan(self, specs: dict[str, ArraySpec], source: StreamSpec) -> Memory:
        config, num_rows = self.config, self._num_slots * self._rows
        size = leaf_bytes(specs, num_rows, self._steps + 1, compress=config.compress_frames)
        size += self._num_slots * sum(int(np.prod(shape)) * d.itemsize for shape, d in self._arrays(source).values())
        size += Priorities.num_bytes_of(self._num_slots * self._units) if config.prioritised else 0
        memory = Memory(size, mmap_bytes=config.mmap_bytes, folder=config.mmap_dir)
        memory.check("replay.capacity", config.capacity)
        return memory

    def _make_leaf(self, key: str, spec: ArraySpec, memory: Memory) -> Leaf:
        if self.config.compress_frames and is_stack(spec):
            return StackedLeaf(self._num_slots, self._steps + 1, self._rows, spec, memory=memory, name=key)
        entries = (self._steps + 1) * self._rows
        return PlainLeaf(self._num_slots, entries, spec.shape, numpy_dtype(spec.dtype), memory=memory)

    # ---------------------------------------------------------------------------------------------------------- counts
    @property
    def num_steps(self) -> int:
        return self._num_stored * self._segment_steps

    @property
    def planned_bytes(self) -> int:
        """Bytes that a full memory should take: the number that was checked at its creation."""
        return self._memory.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of its arrays when every slot has been written."""
        arrays = sum(x.nbytes for x in self._data.values()) + self._selected.nbytes
        priorities = 0 if self._priorities is None else Priorities.num_bytes_of(self._priorities.size)
        return arrays + priorities + sum(leaf.num_bytes for leaf in self._leaves.values())

    @property
    def _num_stored(self) -> int:
        return min(self._num_inserted, self._num_slots)

    def held_rows(self) -> int:
        return self._held

    # ---------------------------------------------------------------------------------------------------------- insert
    def insert(self, segment: Segment) -> int:
        """Copy a `[T, B]` segment over the oldest one. Returns the number of overwritten rows that were never drawn."""
        self._will_fill(self._num_inserted + 1)
        slot = self._num_inserted % self._num_slots
        rows = self._selected[slot * self._rows : (slot + 1) * self._rows]
        evicted = int(len(rows) - np.count_nonzero(rows))
        if self._num_inserted >= self._num_slots:
            for leaf in self._leaves.values():
                leaf.forget(slot)
        self._copy(slot, {k: x.cpu().numpy() for k, x in segment.arrays.items()})
        if self._priorities is not None:
            self._priorities.renew(slot * self._units, (slot + 1) * self._units)
        rows[:] = False
        self._held += len(rows) - evicted
        self._num_inserted += 1
        if self._num_inserted in self._looks:
            self._look_again()
        return evicted

    def _will_fill(self, num_slots: int) -> None:
        """Reserve disk space for `num_slots` slots before they are written. Leaves do this themselves."""
        num = min(num_slots, self._num_slots)
        for array in self._data.values():
            self._memory.will_fill(array, num)

    def _look_again(self) -> None:
        """Refuse episodes so short that their final observations will not fit, while there is still memory for the message.

        The plan assumes one end in `STEPS_AN_END` steps; the stored segments tell the true number.
        """
        part, pooled = self._num_stored / self._num_slots, sum(leaf.pooled_bytes for leaf in self._leaves.values())
        full = int(self.num_bytes - pooled + pooled / part)
        if full > 1.1 * self.planned_bytes:
            following = self._data["following"][: self._num_stored]
            ends = len(np.unique(following[following < 0]))
            why = f"episodes of {self.num_steps / max(ends, 1):.1f} steps leave so many final observations that it "
            memory = Memory(full, mmap_bytes=0 if self._memory.mapped else full + 1, folder=self._memory.folder)
            memory.check("replay.capacity", self.config.capacity, taken=int(part * full), why=why)

    def _copy(self, slot: int, arrays: dict[str, Array]) -> None:
        for key, stored in self._data.items():
            if key in arrays:
                stored[slot] = arrays[key]
        places = arrays["final_index"]
        ended = np.flatnonzero((arrays["terminated"] | arrays["truncated"]).reshape(-1)[places])
        places = places[ended]
        first = 0
        for key, leaf in self._leaves.items():
            first = leaf.put(slot, arrays[key], _final(arrays, key, ended), places)
        self._follow(slot, places, first, arrays)

    def _follow(self, slot: int, places: Array, first_final: int, arrays: dict[str, Array]) -> None:
        """Record what followed each step: the next entry, or (below 0) the final observation of its episode."""
        following = np.arange(self._segment_steps) + (slot * (self._segment_steps + self._rows) + self._rows)
        following[places] = -1 - np.arange(first_final, first_final + len(places))
        grid = following.reshape(self._steps, self._rows)
        if self.config.n_step == 1:
            self._data["following"][slot] = grid
            np.multiply(~arrays["terminated"], np.float32(self.gamma), out=self._data["discount"][slot])
            return
        ends = [torch.from_numpy(arrays[k]) for k in ("terminated", "truncated")]
        for channel in self._channels:
            steps = torch.from_numpy(arrays[channel])
            total, discount, last = n_step_returns(steps, *ends, gamma=self.gamma, n=self.config.n_step)
            self._data[channel][slot] = total.numpy()
        self._data["discount"][slot] = discount.numpy()
        self._keep_last(slot, grid, last.numpy())

    def _keep_last(self, slot: int, following: Array, last: Array) -> None:
        """Returns of several steps bootstrap from what followed step `last` `[T, B]`."""
        self._data["following"][slot] = np.take_along_axis(following, last, axis=0)

    # ---------------------------------------------------------------------------------------------------------- sample
    def sample(self, slot: Slot, rng: np.random.Generator) -> int:
        """Fill `slot` with units, drawn by priority (stratified) or uniformly, with replacement."""
        if self._num_inserted == 0:
            raise DataError("replay has nothing to sample yet; insert a segment first, or raise the minimum fill")
        out, count = self._out(slot), self._num_stored * self._units
        if self._priorities is not None:
            units = self._priorities.draw(out["weight"], rng, count=count, beta=self._beta())
        else:
            units = rng.integers(0, count, slot.spec.num_rows)
            out["weight"].fill(1.0)
        self._num_drawn += 1
        slot.header.used = self._fill(out, units)
        np.add(units, self._offsets(units), out=out["index"])
        if slot.spec.device != "cpu":
            for key, x in slot.arrays.items():
                x.copy_(torch.from_numpy(out[key]))
        return self._select(self._rows_of(units)) if self._held else 0

    def _out(self, slot: Slot) -> dict[str, Array]:
        """Numpy views of a slot's arrays, made once: its memory never moves."""
        address = slot.arrays["index"].data_ptr()
        known = self._views.get(slot.index)
        if known is None or known[0] != address:
            known = self._views[slot.index] = (address, {k: x.cpu().numpy() for k, x in slot.arrays.items()})
        return known[1]

    def _beta(self) -> float:
        """The present beta. Progress is that of the budget (steps or updates) that is nearer to its end."""
        steps = self._num_inserted * self._segment_steps
        spent = ((steps, self._total_steps), (self._num_drawn, self._total_updates))
        return schedule.at(self.config.beta, max([n / total for n, total in spent if total], default=0.0))

    def _offsets(self, units: Array) -> Array | int:
        """The difference between a unit's index among all ever inserted and its place in the ring."""
        if self._num_inserted <= self._num_slots:
            return 0
        rounds, ahead = divmod(self._num_inserted, self._num_slots)
        offsets: Array = (rounds - (units >= ahead * self._units)) * (self._num_slots * self._units)
        return offsets

    def _select(self, rows: Array) -> int:
        fresh = rows[~self._selected[rows]]
        if not len(fresh):
            return 0
        self._selected[fresh] = True
        num = len(np.unique(fresh))
        self._held -= num
        return num

    # -------------------------------------------------------------------------------------------------------- feedback
    def feedback(self, values: Feedback) -> None:
        """Set priorities: `index` `[B]` from `sample`, and `priority` `[B]`, the absolute errors."""
        if self._priorities is None:
            return
        index, error = (values.values[k].cpu().numpy() for k in ("index", "priority"))
        kept = index >= (self._num_inserted - self._num_slots) * self._units
        self._priorities.update(index[kept] % self._priorities.size, error[kept])

    # ----------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> State:
        """The memory in chunks; full ones are `SealedChunk`. They are views, valid until the next insert: write them at
        once."""
        return {
            "pieces": [[start, stop, self._piece(start, stop)] for start, stop in self._spans()],
            "leaves": {k: leaf.counts() for k, leaf in self._leaves.items()},
            "priorities": None if self._priorities is None else self._priorities.snapshot(),
            "num_inserted": self._num_inserted,
            "num_drawn": self._num_drawn,
            "selected": self._selected.copy(),
        }

    def _spans(self) -> list[tuple[int, int]]:
        """Ranges of slots of at most a chunk, each in order of insertion: none crosses the slot that is written next."""
        head, n = self._num_inserted % self._num_slots, self._num_stored
        marks = {*range(0, n, self._piece_slots), min(head, n), n}
        return list(itertools.pairwise(sorted(marks)))

    def _piece(self, start: int, stop: int) -> SealedChunk | State:
        arrays = {k: x[start:stop] for k, x in self._data.items()}
        arrays |= {f"{key}.{k}": x for key, leaf in self._leaves.items() for k, x in leaf.save(start, stop).items()}
        tensors = {k: torch.from_numpy(x) for k, x in arrays.items()}
        if stop - start < self._piece_slots:
            return tensors
        age = (self._num_inserted - 1 - start) // self._num_slots
        if self._names.get(start, (-1, ""))[0] != age:
            self._names[start] = age, _digest(arrays)
        return SealedChunk(self._names[start][1], lambda: tensors)

    def restore(self, state: State) -> None:
        self._num_inserted = int(state["num_inserted"])
        self._num_drawn = int(state.get("num_drawn", 0))  # older checkpoints have none
        self._names.clear()
        for key, leaf in self._leaves.items():
            leaf.recount(state["leaves"][key])
        self._will_fill(self._num_inserted)
        for start, stop, piece in state["pieces"]:
            self._load(start, stop, piece.read() if isinstance(piece, SealedChunk) else piece)
        if self._priorities is not None:
            self._priorities.restore(state["priorities"])
        self._selected = state["selected"].copy()
        self._held = int(len(self._selected) - np.count_nonzero(self._selected))

    def _load(self, start: int, stop: int, tensors: Mapping[str, torch.Tensor]) -> None:
        arrays = {k: x.numpy() for k, x in tensors.items()}
        for key, stored in self._data.items():
            stored[start:stop] = arrays[key]
        for key, leaf in self._leaves.items():
            prefix = key + "."
            leaf.load(start, stop, {k.removeprefix(prefix): x for k, x in arrays.items() if k.startswith(prefix)})


def _digest(arrays: Mapping[str, Array]) -> str:
    """A name made from the content of `arrays`."""
    state = hashlib.blake2b(digest_size=16)
    for key, x in arrays.items():
        state.update(f"{key} {x.shape} {x.dtype}".encode())
        state.update(np.ascontiguousarray(x).data)
    return state.hexdigest()


def _final(arrays: dict[str, Array], key: str, ended: Array) -> Array:
    """The final observations (or masks) of episodes that ended."""
    final = arrays["final_" + key]
    return final if len(final) == len(ended) else final[ended]
