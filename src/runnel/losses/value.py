"""Value losses: regression of state values."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.losses.base import Loss, same_shape
from runnel.ops.masked import masked_mean


def value_loss(
    value: Tensor,
    target: Tensor,
    *,
    denominator: Tensor | float,
    behaviour_value: Tensor | None = None,
    clip: float | None = None,
    mask: Tensor | None = None,
) -> Loss:
    """Half the squared error of a critic. All `[...]`, of one shape.

        L = sum (value - target)^2 / 2 / denominator

    With `clip` and `behaviour_value` (both or neither) the error is the larger one of `value` and of `value` held within
    `clip` of `behaviour_value` (Engstrom et al. 2020, arXiv:2005.12729, sec. 3).
    """
    same_shape("value_loss", value=value, target=target, behaviour_value=behaviour_value, mask=mask)
    error = F.mse_loss(value, target, reduction="none")
    if clip is not None and behaviour_value is not None:
        near = behaviour_value + (value - behaviour_value).clamp(-clip, clip)
        error = torch.maximum(error, F.mse_loss(near, target, reduction="none"))
    return Loss(masked_mean(error, mask, denominator=2.0 * denominator))
