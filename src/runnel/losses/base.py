"""What a loss returns, what every loss asks of its tensors, and means whose denominator comes from outside.

A mean whose denominator is the local count changes when a batch is split over micro-batches or ranks. Here the caller passes
the count of the whole (global) batch, so that the sum over any split is the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from runnel.core.errors import DataError


@dataclass
class Loss:
    """A scalar to differentiate, detached scalars to show, and where the loss has one, the error of each row (detached)."""

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    per_row: Tensor | None = None

    @property
    def error(self) -> Tensor:
        """`per_row` of a loss that has it: replay takes it for a priority."""
        assert self.per_row is not None, "this loss has no error by row"
        return self.per_row


def same_shape(loss: str, /, **tensors: Tensor | torch.Size | None) -> None:
    """Refuse tensors of unequal shapes, which arithmetic would broadcast: `[N, 1]` beside `[N]` is a loss over `[N, N]`.

    Shapes are known on the host, so this waits for no device. A shape may stand for a tensor (part of one), and None for one
    that is not given.

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
