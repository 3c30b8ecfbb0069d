"""What learners share: numbers of the whole batch from a rank's part, and transitions from replay, merged and checked."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.contracts.learning import Collective
from runnel.core.errors import NonFiniteError
from runnel.core.records import Segment
from runnel.core.state import Metrics


def of_whole_batch(numbers: Tensor, names: Sequence[str], collective: Collective, *, means: Collection[str]) -> Tensor:
    """A rank's estimate of the numbers of the whole batch; the trainer shows the mean over ranks, which is exact. `[n] -> [n]`

    Losses, and whatever else was divided by the count of the whole batch, are of the rank's part alone: times the number of
    ranks. `means` were taken over that part, or are the same on every rank: they stay.
    """
    if collective.world_size == 1:
        return numbers
    return numbers * numbers.new_tensor([1.0 if name in means else collective.world_size for name in names])


def read_metrics(numbers: Mapping[str, Tensor], collective: Collective, *, sums: Collection[str], version: int) -> Metrics:
    """Numbers of the device by name `[]`, as metrics of the whole batch; the host waits once. `sums` were divided by the count
    of the whole batch, all others are means of this rank's part. Raises a `NonFiniteError` for a loss that is not finite."""
    means = [name for name in numbers if name not in sums]
    found = of_whole_batch(torch.stack(list(numbers.values())), list(numbers), collective, means=means)
    metrics: Metrics = dict(zip(numbers, found.tolist(), strict=True))
    for name, number in metrics.items():
        if name.startswith("loss/") and not math.isfinite(number):
            raise NonFiniteError(name, version)
    return metrics


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
