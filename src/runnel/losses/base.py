"""What a loss returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass
class Loss:
    """A scalar to differentiate, and detached scalars to show."""

    value: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
