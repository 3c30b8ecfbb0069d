"""What a loss returns, and what every loss asks of its tensors."""

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
