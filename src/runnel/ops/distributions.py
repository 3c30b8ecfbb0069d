"""Action distributions as plain functions of tensors: few operations, and no hidden random state.

Sampling is a function of uniform noise that travels with the request, so an answer depends on its own row alone and can be
computed again anywhere. `...` stands for any leading dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_TWO = math.log(2.0)
UNIFORM_MARGIN = 2.0**-24
"""Half a unit in the last place of float32 at 1: the closest that uniform noise comes to either end."""


def mask_logits(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits at which actions that `mask` forbids have probability 0. `[..., A], [..., A] bool -> [..., A]`

    The fill is the most negative finite number: `p log p` stays 0, where minus infinity would make it NaN.
    """
    return logits if mask is None else logits.masked_fill(~mask, torch.finfo(logits.dtype).min)


def categorical_sample(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of the cumulative distribution at `noise`, and its log-probability. `[..., A], [..., 1] -> [...], [...]`

    `a = min {a : sum_{i <= a} p_i > u * sum_i p_i}`: for u below 1 that is never an action of probability 0.
    """
    probs = logits.softmax(-1)
    cdf = _cumulative(probs)
    action = torch.searchsorted(cdf, noise.clamp(max=1.0 - UNIFORM_MARGIN) * cdf[..., -1:], right=True)
    return action.squeeze(-1), probs.gather(-1, action).log().squeeze(-1)


def _cumulative(probs: Tensor) -> Tensor:
    """Sums over the first 1, 2, ... entries. A CUDA device scans short rows a hundred times slower than it multiplies them."""
    num = probs.shape[-1]
    if not probs.is_cuda or num > 64:
        return probs.cumsum(-1)
    return probs @ torch.ones(num, num, dtype=probs.dtype, device=probs.device).triu()


def categorical_mode(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable action and its log-probability. `[..., A] -> [...], [...]`"""
    logprob, action = logits.log_softmax(-1).max(-1)
    return action, logprob


def categorical_evaluate(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probability of `action`, and the entropy `-sum_a p_a log p_a`. `[..., A], [...] int -> [...], [...]`"""
    logprobs = logits.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy


def gaussian_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """`a = mean + std * Phi^-1(u)` and its log-probability. `[..., D], [D], [..., D] -> [..., D], [...]`"""
    z = torch.special.ndtri(noise.clamp(UNIFORM_MARGIN, 1.0 - UNIFORM_MARGIN))
    return mean + log_std.exp() * z, _normal_logprob(z, log_std)


def gaussian_mode(mean: Tensor, log_std: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and its log-probability. `[..., D], [D] -> [..., D], [...]`"""
    return mean, _normal_logprob(torch.zeros_like(mean), log_std)


def gaussian_evaluate(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density of `action` under a diagonal Gaussian, and its entropy. `[..., D], [D], [..., D] -> [...], [...]`

    log p = -sum_i (z_i^2 / 2 + log std_i + log(2 pi) / 2),  H = sum_i (log std_i + (1 + log(2 pi)) / 2)
    """
    logprob = _normal_logprob((action - mean) * (-log_std).exp(), log_std)
    entropy = log_std.sum() + log_std.numel() * (0.5 + HALF_LOG_TWO_PI)
    return logprob, entropy.expand_as(logprob)


def _normal_logprob(z: Tensor, log_std: Tensor) -> Tensor:
    return -0.5 * z.square().sum(-1) - (log_std.sum() + log_std.numel() * HALF_LOG_TWO_PI)


def squashed_gaussian(mean: Tensor, log_std: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """`a = tanh(u)`, `u = mean + std z` with normal noise `z`, and its log-density. `[..., D]` each `-> [..., D], [...]`

    log p(a) = sum_i (log N(u_i) - log(1 - tanh(u_i)^2)): Haarnoja et al. 2018 (arXiv:1812.05905), appendix C. Both results are
    differentiable in `mean` and `log_std` (the noise is fixed). In float32 an action is exactly 1 from u = 9.1 on; its
    log-density is right beyond that. Entropy has no closed form: it is the mean of `-logprob`.
    """
    u = mean + log_std.exp() * z
    return u.tanh(), _squashed_logprob(z, log_std, u)


def _squashed_logprob(z: Tensor, log_std: Tensor, u: Tensor) -> Tensor:
    """`log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))`, which neither overflows nor cancels."""
    log_slope = 2.0 * (LOG_TWO - u - softplus(-2.0 * u))
    return -(0.5 * z.square() + log_std + log_slope).sum(-1) - z.shape[-1] * HALF_LOG_TWO_PI
