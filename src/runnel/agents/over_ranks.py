"""Metrics of a batch that ranks share, out of the numbers that each of them has of its part."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from runnel.core.protocols import Collective


def over_ranks(numbers: Tensor, names: Sequence[str], collective: Collective, *, means: Collection[str]) -> Tensor:
    """What `numbers` are for the whole batch. `[n] -> [n]`

    Losses, and whatever else was divided by the count of the whole batch, add up. `means` were taken over the rank's own part,
    or are the same on every rank: of those it is the mean.
    """
    if collective.world_size == 1:
        return numbers
    scale = numbers.new_tensor([1.0 / collective.world_size if name in means else 1.0 for name in names])
    return collective.all_reduce(numbers.detach().clone()) * scale
