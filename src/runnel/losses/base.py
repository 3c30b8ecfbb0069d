"""The result of a loss, the check of its tensors, and means with a denominator that the caller gives.

A mean over the local count changes when a batch is split over micro-batches or ranks. Here the caller passes the count of the
whole (global) batch, so that the sum over any split is the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runnel.core.errors import DataError


@dataclass
class Loss:
    """A scalar to differentiate, detached scalars to show, and, for some losses, the detached error of each row."""

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    per_row: Tensor | None = None

    @property
    def error(self) -> Tensor:
        """`per_row` of a loss that has it: replay uses it as a priority."""
        assert self.per_row is not None, "this loss has no error by row"
        return self.per_row


def same_shape(loss: str, /, **tensors: Tensor | torch.Size | None) -> None:
    """Refuse tensors of unequal shapes, which arithmetic would broadcast: `[N, 1]` beside `[N]` is a loss over `[N, N]`.

    The CPU knows all shapes, so the check waits for no device. A shape may be given in place of a tensor, and None for a tensor
    that is absent.

    >>> same_shape("value_loss", value=torch.zeros(4, 1), target=torch.zeros(4))
    Traceback (most recent call last):
    runnel.core.errors.DataError: value_loss: value [4, 1] and target [4] must have one shape; squeeze or reshape one of them
    """
    first, shape = "", None
    for name, x in tensors.items():
        if x is None:
            continue
        found = x if isinstance(x, torch.Size) else x.shape
        if shape is None:
            first, shape = name, found
        elif found != shape:
            both = f"{first} {list(shape)} and {name} {list(found)}"
            raise DataError(f"{loss}: {both} must have one shape; squeeze or reshape one of them")


def masked_sum(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Sum of `x` where `mask` holds, or of all entries without a mask. Masked entries may be NaN. `[...] -> []`

    >>> import torch
    >>> masked_sum(torch.tensor([1.0, float("nan")]), torch.tensor([True, False])).item()
    1.0
    """
    # not `x * mask`: NaN times 0 is NaN, also in the gradient
    return x.sum() if mask is None else x.masked_fill(~mask, 0.0).sum()


def masked_mean(x: Tensor, mask: Tensor | None = None, *, denominator: Tensor | float) -> Tensor:
    """`sum(x * mask) / denominator`, with the denominator of the whole global batch. `[...] -> []`

    >>> import torch
    >>> masked_mean(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False]), denominator=4).item()
    0.75
    """
    return masked_sum(x, mask) / denominator
