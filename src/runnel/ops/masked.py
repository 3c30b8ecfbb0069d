"""Reductions over part of a tensor, with the denominator given from outside.

A mean whose denominator is the local count changes when a batch is split over micro-batches or ranks. Here the caller
passes the count of the whole (global) batch, so that the sum over any split is the same number.
"""

from __future__ import annotations

from torch import Tensor


def masked_sum(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum of `x` where `mask` holds (everywhere without one). Masked entries may be anything, even NaN. `[...] -> []`

    >>> import torch
    >>> masked_sum(torch.tensor([1.0, float("nan")]), torch.tensor([True, False])).item()
    1.0
    """
    return x.sum() if mask is None else x.masked_fill(~mask, 0.0).sum()


def masked_mean(x: Tensor, mask: Tensor | None = None, *, denominator: Tensor | float) -> Tensor:
    """`sum(x * mask) / denominator`, with the denominator of the whole global batch. `[...] -> []`

    >>> import torch
    >>> masked_mean(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]), denominator=4).item()
    0.75
    """
    return masked_sum(x, mask) / denominator
