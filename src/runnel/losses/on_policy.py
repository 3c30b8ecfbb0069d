"""Losses of on-policy agents: of the policy, from log-probabilities and advantages, and of the critic, by regression."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.losses.base import Loss, masked_mean, same_shape


def policy_gradient_loss(
    logprob: Tensor, advantage: Tensor, *, denominator: Tensor | float, mask: Tensor | None = None
) -> Loss:
    """The policy gradient with a baseline (Sutton et al. 2000; Mnih et al. 2016, arXiv:1602.01783, sec. 4). All `[...]`.

        L = -sum logprob * A / denominator

    `advantage` carries no gradient. For data of another policy it includes the importance weight (IMPALA: rho A).
    """
    same_shape("policy_gradient_loss", logprob=logprob, advantage=advantage, mask=mask)
    return Loss(masked_mean(logprob * -advantage.detach(), mask, denominator=denominator))


@torch.no_grad()
def approximate_kl(
    logprob: Tensor, behaviour_logprob: Tensor, *, denominator: Tensor | float, mask: Tensor | None = None
) -> Tensor:
    """The distance of the policy from the one that acted: the k3 estimate of KL(behaviour || policy). `[...], [...] -> []`

    It is never negative (Schulman 2020, "Approximating KL divergence"), and carries no gradient.

    sum (r - 1 - log r) / denominator,  r = exp(logprob - behaviour_logprob)
    """
    same_shape("approximate_kl", logprob=logprob, behaviour_logprob=behaviour_logprob, mask=mask)
    log_ratio = logprob - behaviour_logprob
    return _k3(log_ratio, log_ratio.exp(), mask, denominator=denominator)


def _k3(log_ratio: Tensor, ratio: Tensor, mask: Tensor | None, *, denominator: Tensor | float) -> Tensor:
    return masked_mean(ratio - 1.0 - log_ratio, mask, denominator=denominator)


def clipped_policy_loss(
    logprob: Tensor,
    behaviour_logprob: Tensor,
    advantage: Tensor,
    *,
    clip: float,
    denominator: Tensor | float,
    mask: Tensor | None = None,
    dual_clip: float | None = None,
) -> Loss:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7). All `[...]`, of one shape.

        r = exp(logprob - behaviour_logprob)
        L = -sum min(r A, clip(r, 1 - clip, 1 + clip) A) / denominator

    With `dual_clip` c > 1, entries of negative advantage are bounded below as well, by c A (Ye et al. 2020,
    arXiv:1912.09729, eq. 5): with data of an old policy one entry of a very large r could dominate the gradient.

    Metrics: `kl` (`approximate_kl`), and `clip_fraction`, the share of entries at which r left the interval.
    """
    same_shape("clipped_policy_loss", logprob=logprob, behaviour_logprob=behaviour_logprob, advantage=advantage, mask=mask)
    log_ratio = logprob - behaviour_logprob
    ratio = log_ratio.exp()
    with torch.no_grad():
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
        earns = ratio * advantage <= clipped * advantage
        kl = _k3(log_ratio, ratio, mask, denominator=denominator)
        clip_fraction = masked_mean((ratio != clipped).to(ratio.dtype), mask, denominator=denominator)
    # the minimum, written as a choice: a clipped term is then a constant without gradient
    chosen = torch.where(earns, ratio, clipped)
    if dual_clip is not None:
        chosen = torch.where(advantage < 0.0, chosen.clamp(max=dual_clip), chosen)
    value = masked_mean(chosen * -advantage, mask, denominator=denominator)
    return Loss(value, {"kl": kl, "clip_fraction": clip_fraction})


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

    With `clip` and `behaviour_value` (both or neither), two errors are compared and the larger one counts: that of `value`, and
    that of `value` clamped to within `clip` of `behaviour_value` (Engstrom et al. 2020, arXiv:2005.12729, sec. 3).
    """
    same_shape("value_loss", value=value, target=target, behaviour_value=behaviour_value, mask=mask)
    error = F.mse_loss(value, target, reduction="none")
    if clip is not None and behaviour_value is not None:
        near = behaviour_value + (value - behaviour_value).clamp(-clip, clip)
        error = torch.maximum(error, F.mse_loss(near, target, reduction="none"))
    return Loss(masked_mean(error, mask, denominator=2.0 * denominator))


def huber_value_loss(
    value: Tensor,
    target: Tensor,
    *,
    delta: float,
    denominator: Tensor | float,
    behaviour_value: Tensor | None = None,
    clip: float | None = None,
    mask: Tensor | None = None,
) -> Loss:
    """`value_loss`, whose gradient is bounded: errors beyond `delta` count linearly (Huber 1964). All `[...]`, of one shape.

    e = value - target
    L = sum h(e) / denominator,  h(e) = e^2 / 2 if |e| <= delta, else delta (|e| - delta / 2)
    """
    same_shape("huber_value_loss", value=value, target=target, behaviour_value=behaviour_value, mask=mask)
    error = F.huber_loss(value, target, reduction="none", delta=delta)
    if clip is not None and behaviour_value is not None:
        near = behaviour_value + (value - behaviour_value).clamp(-clip, clip)
        error = torch.maximum(error, F.huber_loss(near, target, reduction="none", delta=delta))
    return Loss(masked_mean(error, mask, denominator=denominator))
