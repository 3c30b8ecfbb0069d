"""Replay of transitions: (s, a, r, s') drawn from stored segments, r and s' over `n_step` steps.

Consumes `trajectories`, produces `replay`.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array
from runnel.core.trajectories import REWARD
from runnel.data.store import ReplayConfig as ReplayConfig
from runnel.data.store import SegmentStore


def replay_stream(
    env: EnvSpec, *, batch_size: int, name: str = "replay", capacity: int = 2, reader: str = "trainer"
) -> StreamSpec:
    """A stream of training batches: `batch_size` transitions a segment, with importance `weight` and `index` for feedback.

    The target of a transition is `rewards/env + discount * V(next_obs)`: `rewards/env` (like every other channel) is a
    discounted sum where the replay adds up several steps, and `discount` is gamma for each of them, or 0 where the episode
    terminated.
    """
    fields: dict[str, FieldSpec] = {}
    for key, leaf in env.obs.items():
        fields[key] = FieldSpec(("B", *leaf.shape), leaf.dtype)
        fields["next_" + key] = FieldSpec(("B", *leaf.shape), leaf.dtype)
    fields["action"] = FieldSpec(("B", *env.action.shape), env.action.dtype)
    for channel in (REWARD, *env.channels.names):
        fields[channel] = FieldSpec(("B",))
    fields["discount"] = FieldSpec(("B",))
    if env.has_mask:
        fields |= {key: FieldSpec(("B", env.action.mask_size), torch.bool) for key in ("action_mask", "next_action_mask")}
    fields["weight"] = FieldSpec(("B",))
    fields["index"] = FieldSpec(("B",), torch.int64)
    feedback = {"priority": FieldSpec(("B",)), "index": FieldSpec(("B",), torch.int64)}
    return StreamSpec(name, fields, {"B": batch_size}, capacity=capacity, readers=(reader,), feedback=feedback)


class ReplayStore(SegmentStore):
    """Draws single transitions; a unit is `slot * T * B + t * B + b`."""

    drawn: ClassVar[tuple[str, ...]] = ("action", "rewards/env", "discount")

    def _units_per_segment(self) -> int:
        return self._segment_steps

    def _rows_of(self, units: Array) -> Array:
        rows: Array = units // self._segment_steps * self._rows + units % self._rows
        return rows

    def _fill(self, out: dict[str, Array], units: Array) -> dict[str, int]:
        """One gather a field. An observation's entry is its unit, moved on by the last observations of segments before it."""
        for key in self._drawn:
            self._flat[key].take(units, axis=0, out=out[key], mode="clip")
        entries = units + units // self._segment_steps * self._rows
        following = self._flat["following"].take(units)
        for key, leaf in self._leaves.items():
            leaf.take(entries, out[key])
            leaf.follow(following, out["next_" + key])
        return {}
