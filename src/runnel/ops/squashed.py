"""SAC's policy from a network's output: actions in (-1, 1), their log-densities, and the gradient of both by hand.

The formula is that of `distributions.squashed_gaussian_sample`. Its derivative is short (d log p / d u = 2 tanh(u)), and
written out it spares an update a graph of twenty small operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from runnel.ops.distributions import HALF_LOG_TWO_PI, LOG_TWO


@dataclass
class Squashed:
    """Actions `[B, D]` and log-densities `[B]`; `spread` (std z) and `free` (log std is within its bounds) for the gradient."""

    action: Tensor
    logprob: Tensor
    spread: Tensor
    free: Tensor

    def halves(self) -> tuple[Squashed, Squashed]:
        """The first and the last half of the rows."""
        parts = (x.chunk(2) for x in (self.action, self.logprob, self.spread, self.free))
        first, last = zip(*parts, strict=True)
        return Squashed(*first), Squashed(*last)


def squash(scores: Tensor, z: Tensor, *, log_std_bounds: tuple[float, float]) -> Squashed:
    """`a = tanh(u)`, `u = mean + std z`, with `scores` = (mean, log std) and normal noise `z`. `[B, 2 D], [B, D]`

        log p(a) = sum_i (-z_i^2 / 2 - log std_i - log(2 pi) / 2 - log(1 - tanh(u_i)^2))

    Haarnoja et al. 2018 (arXiv:1812.05905, app. C); log std is clamped to its bounds.
    """
    mean, raw = scores.chunk(2, dim=-1)
    log_std = raw.clamp(*log_std_bounds)
    spread = log_std.exp().mul_(z)
    u = mean + spread
    # -log(1 - tanh(u)^2) = 2 (u + softplus(-2 u) - log 2) neither overflows nor cancels
    terms = softplus(u * -2.0).add_(u).mul_(2.0).sub_(log_std).addcmul_(z, z, value=-0.5)
    logprob = terms.sum(-1).sub_(z.shape[-1] * (HALF_LOG_TWO_PI + 2.0 * LOG_TWO))
    return Squashed(u.tanh_(), logprob, spread, raw == log_std)


def squash_backward(policy: Squashed, *, to_action: Tensor, to_logprob: Tensor) -> Tensor:
    """The gradient of `scores` from those of action and log-density. `[B, D], [B] -> [B, 2 D]`

    d u = to_action (1 - a^2) + 2 a to_logprob,   d mean = d u,   d log std = d u std z - to_logprob
    """
    each = to_logprob.unsqueeze(-1)
    to_u = torch.ops.aten.tanh_backward(to_action, policy.action).addcmul_(policy.action, each, value=2.0)
    return torch.cat([to_u, (to_u * policy.spread).sub_(each).mul_(policy.free)], dim=-1)
