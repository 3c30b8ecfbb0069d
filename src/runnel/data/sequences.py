"""Replay of sequences for recurrent networks: whole rows, each with the state that the policy had at its start.

A batch looks like a segment of trajectories (`core/trajectories.py`), put together from rows of many segments. What the first
steps are used for, to warm the state up or to learn from, is the learner's choice (R2D2, Kapturowski et al. 2019). Consumes
`trajectories`, produces `replay`.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from runnel.core.records import FieldSpec, StreamSpec
from runnel.core.state import Array
from runnel.core.trajectories import TASK_ID, TASK_PARAMS, TASK_RETURN
from runnel.data.store import SegmentStore

_NOT_REPLAYED = ("logprob", "policy_version", "terminated", "truncated", TASK_ID, TASK_PARAMS, TASK_RETURN)


def sequence_stream(
    source: StreamSpec, *, batch_size: int, name: str = "replay", capacity: int = 2, reader: str = "trainer"
) -> StreamSpec:
    """A stream of training batches: `batch_size` rows of T steps out of `source`.

    Beside the fields of a trajectory there are `ended` (terminated or truncated) and, for returns of up to n steps,
    `rewards/env`, `discount` and `last`, all `[T, B]`: the target of step t is `rewards/env + discount * V(what followed
    step last)`. `weight` and `index` `[B]` are of whole rows, and so is the `priority` that comes back.
    """
    fields = {k: f for k, f in source.fields.items() if k not in _NOT_REPLAYED}
    fields["ended"] = FieldSpec(("T", "B"), torch.bool)
    fields["discount"] = FieldSpec(("T", "B"))
    fields["last"] = FieldSpec(("T", "B"), torch.int64)
    fields["weight"] = FieldSpec(("B",))
    fields["index"] = FieldSpec(("B",), torch.int64)
    sizes = {**source.sizes, "B": batch_size, "F": source.sizes["T"] * batch_size}
    feedback = {"priority": FieldSpec(("B",)), "index": FieldSpec(("B",), torch.int64)}
    return StreamSpec(name, fields, sizes, variable=("F",), capacity=capacity, readers=(reader,), feedback=feedback)


class SequenceStore(SegmentStore):
    """Draws whole rows; a unit is `slot * B + b`."""

    drawn: ClassVar[tuple[str, ...]] = ("action", "rewards/env", "discount", "ended", "last")

    def _units_per_segment(self) -> int:
        return self._rows

    def _rows_of(self, units: Array) -> Array:
        return units

    def _copy(self, slot: int, arrays: dict[str, Array]) -> None:
        self._data["last"][slot] = np.arange(self._steps)[:, None]
        super()._copy(slot, {**arrays, "ended": arrays["terminated"] | arrays["truncated"]})

    def _keep_last(self, slot: int, following: Array, last: Array) -> None:
        self._data["following"][slot], self._data["last"][slot] = following, last

    def _fill(self, out: dict[str, Array], units: Array) -> dict[str, int]:
        slots, rows = np.divmod(units, self._rows)
        time = np.arange(self._steps + 1)[:, None] * self._rows + rows
        steps = slots * self._segment_steps + time[:-1]
        entries = (slots * (self._segment_steps + self._rows) + time).reshape(-1)
        for key in self._drawn:
            self._flat[key].take(steps, axis=0, out=out[key], mode="clip")
        for key in self._states:
            self._flat[key].take(units, axis=0, out=out[key], mode="clip")
        final = np.flatnonzero(out["ended"])
        following = self._flat["following"].take(steps.reshape(-1)[final])
        out["final_index"][: len(final)] = final
        for key, leaf in self._leaves.items():
            leaf.take(entries, out[key].reshape(-1, *out[key].shape[2:]))
            leaf.follow(following, out["final_" + key][: len(final)])
        return {"F": len(final)}
