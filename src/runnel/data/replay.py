"""Replay memory: transitions cut from trajectory segments, sampled by priority (Schaul et al. 2016, arXiv:1511.05952).

A *row* of the source stream is one environment's T steps of a segment. Rows are stored whole, so eviction and accounting
are by row: a row counts as used once any of its transitions was selected. Consumes `trajectories`, produces `replay`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, DataError
from runnel.core.protocols import Feedback, State
from runnel.core.records import FieldSpec, Segment, Slot, StreamSpec
from runnel.core.spaces import EnvSpec


@dataclass(frozen=True)
class ReplayConfig:
    """What to keep and how to draw from it."""

    capacity: int = 50_000
    """Transitions kept; the oldest go first."""
    prioritised: bool = True
    """Draw by temporal-difference error; otherwise uniformly."""
    alpha: float = 0.6
    """How much priorities matter: 0 is uniform, 1 proportional to the error."""
    beta: float = 0.4
    """How much importance weights undo the bias of prioritised draws: 0 not at all, 1 fully."""
    min_priority: float = 1e-3
    """Added to every error, so that no transition is never drawn again."""


def replay_stream(
    env: EnvSpec, *, batch_size: int, name: str = "replay", capacity: int = 2, reader: str = "trainer", device: str = "cpu"
) -> StreamSpec:
    """A stream of training batches: `batch_size` transitions a segment, with importance `weight` and `index` for feedback."""
    fields: dict[str, FieldSpec] = {}
    for key, leaf in env.obs.items():
        fields[key] = FieldSpec(("B", *leaf.shape), leaf.dtype)
        fields["next_" + key] = FieldSpec(("B", *leaf.shape), leaf.dtype)
    fields["action"] = FieldSpec(("B", *env.action.shape), env.action.dtype)
    fields["rewards/env"] = FieldSpec(("B",))
    fields["terminated"] = FieldSpec(("B",), torch.bool)
    if env.has_mask:
        fields["next_action_mask"] = FieldSpec(("B", env.action.num_actions), torch.bool)
    fields["weight"] = FieldSpec(("B",))
    fields["index"] = FieldSpec(("B",), torch.int64)
    feedback = {"priority": FieldSpec(("B",)), "index": FieldSpec(("B",), torch.int64)}
    return StreamSpec(name, fields, {"B": batch_size}, capacity=capacity, readers=(reader,), device=device, feedback=feedback)


class SumTree:
    """Numbers under a binary tree of their sums: draw i with probability p_i / sum p, set p_i, both in O(log n).

    Every node is exactly the sum of its two children at all times, so the leaves alone restore the tree bit for bit.
    """

    def __init__(self, size: int) -> None:
        self.num_leaves = 1 << max(size - 1, 0).bit_length()
        self._nodes = np.zeros(2 * self.num_leaves)

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def get(self, leaf: np.ndarray) -> np.ndarray:
        values: np.ndarray = self._nodes[leaf + self.num_leaves]
        return values

    def set(self, leaf: np.ndarray, value: np.ndarray | float) -> None:
        """Set leaves. `[N] int, [N]`. Where a leaf occurs twice, the last value counts."""
        node = leaf + self.num_leaves
        self._nodes[node] = value
        for _ in range(self.num_leaves.bit_length() - 1):
            node = node >> 1
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf at which the running sum first exceeds `mass`. `[N] in [0, total) -> [N] int`"""
        node = np.ones(len(mass), dtype=np.int64)
        for _ in range(self.num_leaves.bit_length() - 1):
            left = 2 * node
            below = self._nodes[left]
            # an empty right subtree is never entered, whatever rounding did to the mass
            right = (mass >= below) & (self._nodes[left + 1] > 0.0)
            mass = np.where(right, mass - below, mass)
            node = left + right
        return node - self.num_leaves


class ReplayStore:
    """A ring of source rows behind a buffer worker; implements `core.protocols.Store`.

    A transition's `index` is `row_id * T + t` with row ids that count all rows ever inserted, so feedback about a transition
    that was overwritten meanwhile is recognised and ignored.
    """

    def __init__(self, config: ReplayConfig, env: EnvSpec, *, source: StreamSpec) -> None:
        self.config, self.env = config, env
        self._steps = source.sizes["T"]
        self._num_slots = config.capacity // self._steps
        if self._num_slots < source.num_rows:
            needed = self._steps * source.num_rows
            raise ConfigError(
                "replay.capacity", config.capacity, f"one segment has {needed} transitions; use at least {needed}"
            )
        fields = replay_stream(env, batch_size=1).fields
        size = self._num_slots * self._steps
        shapes = {k: (size, *f.dims[1:]) for k, f in fields.items() if k not in ("weight", "index")}
        self._data = Batch({k: torch.zeros(shape, dtype=fields[k].dtype) for k, shape in shapes.items()})  # type: ignore[arg-type]
        self._tree = SumTree(size)
        self._num_inserted = 0
        self._selected = np.ones(self._num_slots, dtype=bool)
        self._version = np.zeros(self._num_slots, dtype=np.int64)
        self._max_priority = 1.0

    @property
    def num_steps(self) -> int:
        return self._num_stored * self._steps

    @property
    def _num_stored(self) -> int:
        return min(self._num_inserted, self._num_slots)

    def held_rows(self) -> int:
        return int((~self._selected).sum())

    def insert(self, segment: Segment) -> int:
        """Copy the rows of a `[T, B]` segment over the oldest ones."""
        num_rows = segment.num_rows
        slots = (self._num_inserted + np.arange(num_rows)) % self._num_slots
        evicted = int((~self._selected[slots]).sum())
        leaves = self._leaves(slots)
        where = torch.from_numpy(leaves)
        for key, x in self._transitions(segment.arrays).items():
            self._data[key].index_copy_(0, where, x.transpose(0, 1).flatten(0, 1).to("cpu"))
        if self.config.prioritised:
            self._tree.set(leaves, self._max_priority)
        self._selected[slots] = False
        self._version[slots] = segment.header.version_min
        self._num_inserted += num_rows
        return evicted

    def sample(self, slot: Slot, rng: np.random.Generator) -> int:
        """Fill `slot` with transitions drawn by priority (stratified) or uniformly, both with replacement."""
        if self._num_inserted == 0:
            raise DataError("replay has nothing to sample yet; insert a segment first, or raise the minimum fill")
        batch_size = slot.spec.num_rows
        if self.config.prioritised:
            leaves, weight = self._draw_by_priority(batch_size, rng)
        else:
            leaves, weight = rng.integers(0, self.num_steps, batch_size), np.ones(batch_size)
        slots = leaves // self._steps
        where = torch.from_numpy(leaves)
        for key, x in self._data.items():
            slot.arrays[key].copy_(x.index_select(0, where))
        slot.arrays["weight"].copy_(torch.from_numpy(weight))
        slot.arrays["index"].copy_(torch.from_numpy(self._row_ids(slots) * self._steps + leaves % self._steps))
        slot.header.version_min, slot.header.version_max = int(self._version[slots].min()), int(self._version[slots].max())
        fresh = np.unique(slots[~self._selected[slots]])
        self._selected[fresh] = True
        return len(fresh)

    def feedback(self, values: Feedback) -> None:
        """New priorities: `index` `[B]` as `sample` gave it, and `priority` `[B]`, the absolute errors."""
        if not self.config.prioritised:
            return
        index, error = values.values["index"].cpu().numpy(), values.values["priority"].cpu().numpy().astype(np.float64)
        if not np.isfinite(error).all():
            raise DataError("replay was given priorities that are not finite; send the absolute errors of the update")
        row_id = index // self._steps
        kept = row_id >= self._num_inserted - self._num_slots
        priority = (error[kept] + self.config.min_priority) ** self.config.alpha
        self._tree.set((row_id[kept] % self._num_slots) * self._steps + index[kept] % self._steps, priority)
        self._max_priority = max(self._max_priority, float(priority.max(initial=0.0)))

    def snapshot(self) -> State:
        used = self.num_steps
        return {
            "data": {k: x[:used].clone() for k, x in self._data.items()},
            "priority": self._tree.get(np.arange(used)),
            "num_inserted": self._num_inserted,
            "selected": self._selected.copy(),
            "version": self._version.copy(),
            "max_priority": self._max_priority,
        }

    def restore(self, state: State) -> None:
        self._num_inserted, self._max_priority = int(state["num_inserted"]), float(state["max_priority"])
        used = self.num_steps
        for key, x in self._data.items():
            x[:used].copy_(state["data"][key])
        self._tree = SumTree(len(self._selected) * self._steps)
        self._tree.set(np.arange(used), state["priority"])
        self._selected, self._version = state["selected"].copy(), state["version"].copy()

    def _transitions(self, arrays: Batch) -> dict[str, Tensor]:
        """`[T, B, ...]` arrays of (s, a, r, s'): s' is the final observation where the episode ended at that step."""
        out: dict[str, Tensor] = {k: arrays[k] for k in ("action", "rewards/env", "terminated")}
        for key in self.env.obs:
            following = arrays[key][1:]
            final = following.flatten(0, 1).index_copy(0, arrays["final_index"], arrays["final_" + key])
            out[key], out["next_" + key] = arrays[key][:-1], final.view_as(following)
        if self.env.has_mask:
            out["next_action_mask"] = arrays["action_mask"][1:]
        return out

    def _draw_by_priority(self, batch_size: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Leaves, one from each of `batch_size` equal shares of the mass, and weights `(N p_i)^-beta` over their maximum."""
        mass = (np.arange(batch_size) + rng.random(batch_size)) * (self._tree.total / batch_size)
        leaves = self._tree.find(mass)
        weight = (self._tree.get(leaves) / self._tree.total * self.num_steps) ** -self.config.beta
        return leaves, weight / weight.max()

    def _leaves(self, slots: np.ndarray) -> np.ndarray:
        leaves: np.ndarray = (slots[:, None] * self._steps + np.arange(self._steps)).reshape(-1)
        return leaves

    def _row_ids(self, slots: np.ndarray) -> np.ndarray:
        """The id of the row that a slot holds: the largest id below `num_inserted` that falls on the slot."""
        last = self._num_inserted - 1
        ids: np.ndarray = last - (last - slots) % self._num_slots
        return ids
