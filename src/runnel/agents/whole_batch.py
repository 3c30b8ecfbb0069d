"""What a rank's part of a batch says of the whole batch, for metrics."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from runnel.core.errors import NonFiniteError
from runnel.core.protocols import Collective, Metrics


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
