"""Acting on a few rows in numpy. At 8 rows a numpy call costs a quarter of a torch call, and acting is nothing but calls.

The same weights (views of the same memory) and the same formulas as in `heads.py`; results agree to float32 rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.core.batch import Batch
from runnel.nets.heads import ActionHead, ContinuousHead, DiscreteHead
from runnel.ops.distributions import HALF_LOG_TWO_PI, UNIFORM_MARGIN

Array = NDArray[Any]
HOST_ROWS = 256
"""Above so many rows torch is as fast."""
_ROWS = np.arange(HOST_ROWS)


def on_host(x: Tensor) -> bool:
    """Whether the rows of `x` are few, and here; never while a graph of tensors is being taken (`torch.export`)."""
    return not x.is_cuda and not torch.compiler.is_exporting() and x.shape[0] <= HOST_ROWS


def host_action(
    head: ActionHead, scores: Array, rows: Batch, log_std: Tensor | None, *, shape: tuple[int, ...], greedy: bool
) -> Batch | None:
    """`action` and `logprob` for `scores` `[N, S]`; None for an action that only torch can sample."""
    if isinstance(head, DiscreteHead):
        mask = rows.get("action_mask")
        if mask is not None:
            scores = np.where(mask.numpy(), scores, np.finfo(np.float32).min)
        action, logprob = host_categorical(scores, None if greedy else rows["noise"].numpy())
    elif isinstance(head, ContinuousHead) and log_std is not None:
        action, logprob = _host_gaussian(scores, log_std.detach().numpy(), None if greedy else rows["noise"])
        action = action.reshape(len(action), *shape)
    else:
        return None
    return Batch(action=torch.from_numpy(action), logprob=torch.from_numpy(logprob))


def host_categorical(scores: Array, noise: Array | None) -> tuple[Array, Array]:
    """`categorical_sample` (`categorical_mode` without noise). `[N, A], [N, 1] -> [N], [N]`"""
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    cdf = weights.cumsum(-1)
    total = cdf[:, -1]
    if noise is None:
        action = scores.argmax(-1)
    else:
        action = (cdf <= np.minimum(noise, 1.0 - UNIFORM_MARGIN) * total[:, None]).sum(-1)
    return action, np.log(weights[_ROWS[: len(action)], action] / total)


def _host_gaussian(mean: Array, log_std: Array, noise: Tensor | None) -> tuple[Array, Array]:
    """`gaussian_sample` (`gaussian_mode` without noise). `[N, D], [D], [N, D] -> [N, D], [N]`"""
    constant = log_std.sum() + len(log_std) * np.float32(HALF_LOG_TWO_PI)
    if noise is None:
        return mean, np.full(len(mean), -constant, dtype=np.float32)
    z = torch.special.ndtri(noise.clamp(UNIFORM_MARGIN, 1.0 - UNIFORM_MARGIN)).numpy()
    logprob: Array = -0.5 * np.square(z).sum(-1) - constant
    return mean + np.exp(log_std) * z, logprob
