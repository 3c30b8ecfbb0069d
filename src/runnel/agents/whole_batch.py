"""What a rank's part of a batch says of the whole batch, for metrics."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from runnel.core.protocols import Collective


def of_whole_batch(numbers: Tensor, names: Sequence[str], collective: Collective, *, means: Collection[str]) -> Tensor:
    """A rank's estimate of the numbers of the whole batch; the trainer shows the mean over ranks, which is exact. `[n] -> [n]`

    Losses, and whatever else was divided by the count of the whole batch, are of the rank's part alone: times the number of
    ranks. `means` were taken over that part, or are the same on every rank: they stay.
    """
    if collective.world_size == 1:
        return numbers
    return numbers * numbers.new_tensor([1.0 if name in means else collective.world_size for name in names])
