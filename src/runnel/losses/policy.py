"""Policy losses: pure functions of log-probabilities and advantages."""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.losses.base import Loss
from runnel.ops.masked import masked_mean


def clipped_policy_loss(
    logprob: Tensor,
    behaviour_logprob: Tensor,
    advantage: Tensor,
    *,
    clip: float,
    denominator: Tensor | float,
    mask: Tensor | None = None,
) -> Loss:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7). All `[...]`, of one shape.

        r = exp(logprob - behaviour_logprob)
        L = -sum min(r A, clip(r, 1 - clip, 1 + clip) A) / denominator

    Metrics: `kl`, the k3 estimate `r - 1 - log r` of KL(behaviour || policy) (Schulman 2020, "Approximating KL divergence"),
    and `clip_fraction`, the share of entries at which r left the interval.
    """
    log_ratio = logprob - behaviour_logprob
    ratio = log_ratio.exp()
    with torch.no_grad():
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
        earns = ratio * advantage <= clipped * advantage
        kl = masked_mean(ratio - 1.0 - log_ratio, mask, denominator=denominator)
        clip_fraction = masked_mean((ratio != clipped).to(ratio.dtype), mask, denominator=denominator)
    # the minimum, as a choice: where the clipped term is the smaller one it is a constant, and earns no gradient
    value = masked_mean(torch.where(earns, ratio, clipped) * -advantage, mask, denominator=denominator)
    return Loss(value, {"kl": kl, "clip_fraction": clip_fraction})
