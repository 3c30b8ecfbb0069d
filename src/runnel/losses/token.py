"""Loss components for tokens. Each divides by a denominator of the whole global batch that the caller passes in.

Because no component takes a mean over what it happens to see, the sum of the components over any split into micro-batches
or ranks is the loss of the whole batch, and so are its gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.losses.base import Loss


def policy_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    weight: Tensor,
    clip_low: float,
    clip_high: float,
    denominator: float,
) -> Loss:
    """Clipped surrogate, by token. All `[M] -> []`

        r = exp(logprob - old_logprob)
        L = -1/N sum_i w_i min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i)

    PPO (Schulman et al. 2017, arXiv:1707.06347) on tokens; `clip_high > clip_low` is DAPO's asymmetric clip (Yu et al.
    2025, arXiv:2503.14476).
    """
    ratio = torch.exp(logprob - old_logprob)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    value = -(weight * gain).sum() / denominator
    with torch.no_grad():
        used = (weight != 0).float()
        hit = (ratio * advantage > clipped * advantage).float()
        metrics = {
            "clip_fraction": (hit * used).sum() / denominator,
            "approx_kl": ((ratio - 1.0 - (logprob - old_logprob)) * used).sum() / denominator,
        }
    return Loss(value, metrics)


def sft_loss(logprob: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """Cross entropy of the demonstrated tokens: `-1/N sum_i w_i logprob_i`. `[M] -> []`"""
    return Loss(-(weight * logprob).sum() / denominator)


def kl_loss(logprob: Tensor, reference_logprob: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """KL to a reference by the k3 estimator: `1/N sum_i w_i (exp(d_i) - d_i - 1)`, `d = reference - logprob`. `[M] -> []`

    Unbiased and never negative for tokens sampled from the policy (Schulman 2020, joschu.net/blog/kl-approx.html).
    """
    d = reference_logprob - logprob
    return Loss((weight * (torch.exp(d) - d - 1.0)).sum() / denominator)
