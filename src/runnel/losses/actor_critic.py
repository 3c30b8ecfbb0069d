"""The loss of an actor-critic update with its gradient written out.

`ppo_gradient` is `clipped_policy_loss` + `value_loss` - entropy on the scores of a network, differentiated by hand (the tests
hold it against those). For small batches, automatic differentiation of some thirty small operations costs more than the
network itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from runnel.losses.base import same_shape
from runnel.ops.distributions import HALF_LOG_TWO_PI

METRICS = ("loss/total", "loss/policy", "loss/value", "entropy", "kl", "clip_fraction")


class Gradient(NamedTuple):
    """The numbers of `METRICS` `[6]`, and the gradient of the loss in each of its arguments."""

    numbers: Tensor
    to_scores: Tensor
    to_values: Tensor
    to_log_std: Tensor | None


def ppo_gradient(
    scores: Tensor,
    values: Tensor,
    log_std: Tensor | None,
    *,
    rows: Mapping[str, Tensor],
    clip: float,
    dual_clip: float | None,
    value_clip: float | None,
    value_coef: float,
    entropy_coef: float,
    denominator: float,
) -> Gradient:
    """The gradient of `policy + value_coef * value - entropy_coef * entropy` over `rows` (`[N]`: action, logprob, advantage,
    return, value, and action_mask where there is one).

    `scores` `[N, A]` are logits of a categorical distribution (`log_std` None; `action` `[N]`), or means of a
    diagonal Gaussian with `log_std` `[A]`. With H the entropy, p the probabilities, L' = dL/dlogprob, n the denominator:

        categorical:  dL/dscore_j = L' (1[j = a] - p_j) + entropy_coef / n p_j (log p_j + H)
        Gaussian:     dL/dmean_j  = L' z_j / std_j,  dL/dlog_std_j = sum L' (z_j^2 - 1) - entropy_coef N / n
    """
    columns = {name: rows[name] for name in ("logprob", "advantage", "return", "value")}
    same_shape("ppo_gradient", rows_of_scores=scores.shape[:-1], values=values, **columns)
    scale = 1.0 / denominator
    if log_std is None:
        logprob, entropy, terms = _categorical(scores, rows["action"], rows.get("action_mask"))
    else:
        logprob, entropy, terms = _gaussian(scores, log_std, rows["action"])
    earned, slope, log_ratio, ratio, outside = _surrogate(logprob, rows, clip=clip, dual_clip=dual_clip)
    squared, error = _critic(values, rows["return"], rows["value"], value_clip)
    # sums of all columns at once; the k3 estimate of the KL divergence is r - 1 - log r
    sums = torch.stack((earned, squared, entropy, ratio - log_ratio - 1.0, outside.to(ratio.dtype)))
    policy, value, bonus, kl, clipped = sums.sum(1).mul_(scale).unbind(0)
    policy, value = -policy, 0.5 * value
    total = policy + value_coef * value - entropy_coef * bonus if entropy_coef else policy + value_coef * value
    slope = slope.mul_(-scale)
    if log_std is None:
        to_scores, to_log_std = _categorical_grad(slope, terms, entropy, entropy_coef * scale), None
    else:
        to_scores, to_log_std = _gaussian_grad(slope, terms, entropy_coef * scale)
    return Gradient(
        torch.stack((total, policy, value, bonus, kl, clipped)), to_scores, error.mul_(value_coef * scale), to_log_std
    )


def _surrogate(
    logprob: Tensor, rows: Mapping[str, Tensor], *, clip: float, dual_clip: float | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What each row earns, d earned / d logprob, log ratio, ratio, and whether the ratio left the interval."""
    advantage = rows["advantage"]
    log_ratio = logprob - rows["logprob"]
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    gain, held = ratio * advantage, clipped * advantage
    earned, earns = torch.minimum(gain, held), gain <= held
    if dual_clip is not None:
        floor = dual_clip * advantage
        bound = (advantage < 0.0) & (earned < floor)
        earned, earns = torch.where(bound, floor, earned), earns & ~bound
    return earned, gain * earns, log_ratio, ratio, ratio != clipped


def _critic(values: Tensor, target: Tensor, behaviour_value: Tensor, clip: float | None) -> tuple[Tensor, Tensor]:
    """Squared errors (the larger one where values are clipped), and half their slope."""
    error = values - target
    squared = error.square()
    if clip is None:
        return squared, error
    moved = values - behaviour_value
    near = behaviour_value + moved.clamp(-clip, clip) - target
    further = near.square() > squared
    return torch.maximum(squared, near.square()), torch.where(further, near * (moved.abs() < clip), error)


def _categorical_grad(slope: Tensor, terms: tuple[Tensor, ...], entropy: Tensor, entropy_scale: float) -> Tensor:
    action, logprobs, probs = terms
    column = slope.unsqueeze(-1)
    grad = (probs * -column).scatter_add_(-1, action, column)
    return grad.addcmul_(probs, logprobs + entropy.unsqueeze(-1), value=entropy_scale) if entropy_scale else grad


def _gaussian_grad(slope: Tensor, terms: tuple[Tensor, ...], entropy_scale: float) -> tuple[Tensor, Tensor]:
    z, inverse_std = terms
    grad = z * slope.unsqueeze(-1)
    to_log_std = (grad * z).sum(0) - slope.sum() - entropy_scale * len(slope)
    return grad.mul_(inverse_std), to_log_std


def _categorical(scores: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    logprobs = scores.log_softmax(-1)
    probs = logprobs.exp()
    entropy = (probs * logprobs).sum(-1).neg_()
    index = action.unsqueeze(-1)
    return logprobs.gather(-1, index).squeeze(-1), entropy, (index, logprobs, probs)


def _gaussian(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    inverse_std = (-log_std).exp()
    z = (action.reshape(mean.shape) - mean) * inverse_std
    spread = log_std.sum()
    logprob = -0.5 * z.square().sum(-1) - (spread + log_std.numel() * HALF_LOG_TWO_PI)
    entropy = spread + log_std.numel() * (0.5 + HALF_LOG_TWO_PI)
    return logprob, entropy.expand_as(logprob), (z, inverse_std)
