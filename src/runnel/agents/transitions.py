"""Transitions from replay as learners take them: merged, checked, and answered with their errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.errors import NonFiniteError
from runnel.core.records import Segment

BEFORE_UPDATES = "the end of the uniform actions before the first update"
"""What a learner with such actions does not take from another run."""
Sizes = dict[str, list[int]]
"""Rows of each segment, by reader."""


def merge_transitions(
    segments: Mapping[str, Sequence[Segment]], *, home: Batch, device: torch.device, version: int
) -> tuple[Batch, Sizes]:
    """All transitions in one batch `[B]` on `device`, and the sizes by which `split_errors` takes it apart again.

    On an accelerator the batch lies in `home`, at the same address every time, so that an update can be captured in a graph.
    Raises `NonFiniteError` for observations or rewards that are not finite, before anything was trained on them.
    """
    batch = Batch.cat([s.arrays for group in segments.values() for s in group])
    sizes = {name: [s.num_rows for s in group] for name, group in segments.items()}
    for key in (*batch.under("obs"), *batch.under("next_obs"), "rewards/env"):
        # a sum costs a fifth of a full check, and is finite unless an entry is not (or the numbers are absurd)
        if batch[key].is_floating_point() and not math.isfinite(batch[key].sum().item()):
            raise NonFiniteError(key, version)
    if device.type == "cpu":
        return batch, sizes
    for key, x in batch.items():
        if key not in home or home[key].shape != x.shape:
            home[key] = torch.empty(x.shape, dtype=x.dtype, device=device)
        home[key].copy_(x, non_blocking=True)
    return home, sizes


def split_errors(sizes: Sizes, index: Tensor, error: Tensor) -> dict[str, list[Mapping[str, Tensor]]]:
    """Feedback for replay: one mapping per segment, absolute error (`priority`) by transition (`index`). `[B], [B]`"""
    feedback: dict[str, list[Mapping[str, Tensor]]] = {}
    start = 0
    for name, group in sizes.items():
        ends = [start + sum(group[: i + 1]) for i in range(len(group))]
        feedback[name] = [{"index": index[e - n : e], "priority": error[e - n : e]} for n, e in zip(group, ends, strict=True)]
        start += sum(group)
    return feedback
