"""Loss components for tokens. Each divides by a denominator of the whole global batch that the caller passes in.

No component takes a mean over its local tokens. So the components of any split into micro-batches or ranks sum to the loss of
the whole batch, and their gradients to its gradient. Rows are never split, so a component may sum over one.

`weight` is a token's share of the denominator. `count` is the number of the component's tokens in the global batch; it divides
the metrics.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from runnel.losses.base import Loss, same_shape
from runnel.ops.credit import row_sum


def policy_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    weight: Tensor,
    clip_low: float,
    clip_high: float,
    denominator: float,
    count: float,
) -> Loss:
    """Clipped surrogate, by token. All `[M] -> []`

        r = exp(logprob - old_logprob)
        L = -1/N sum_i w_i min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i)

    PPO (Schulman et al. 2017, arXiv:1707.06347) on tokens; `clip_high > clip_low` is DAPO's asymmetric clip (Yu et al.
    2025, arXiv:2503.14476).
    """
    same_shape("policy_loss", logprob=logprob, old_logprob=old_logprob, advantage=advantage, weight=weight)
    ratio = torch.exp(logprob - old_logprob)
    gain, hit = _clipped(ratio, advantage, clip_low, clip_high)
    metrics = {"clip_fraction": hit.sum() / count, "approx_kl": _k3(logprob.detach() - old_logprob).sum() / count}
    return Loss(-(weight * gain).sum() / denominator, metrics)


def sequence_policy_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    row: Tensor,
    num_rows: int,
    weight: Tensor,
    clip_low: float,
    clip_high: float,
    denominator: float,
    count: float,
    mean: bool = True,
) -> Loss:
    """Clipped surrogate of whole sequences: GSPO (Zheng et al. 2025, arXiv:2507.18071, eq. 5 to 7). All `[M] -> []`

        s_i = exp(1/|y_i| sum_t (logprob_it - old_logprob_it))
        L   = -1/N sum_i w_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

    `row` has the sequence of each token, of `num_rows`. The weight w_i of a sequence is the sum of its tokens' weights, 1
    where each has 1/|y_i|; its advantage is the mean of theirs. Without `mean` the ratio is that of the sequence's probability,
    `s_i = exp(sum_t (logprob_it - old_logprob_it))`.
    """
    tensors = {"old_logprob": old_logprob, "advantage": advantage, "row": row, "weight": weight}
    same_shape("sequence_policy_loss", logprob=logprob, **tensors)
    length = row_sum(torch.ones_like(logprob), row, num_rows).clamp(min=1.0)
    gap = row_sum(logprob - old_logprob, row, num_rows)
    ratio = torch.exp(gap / length if mean else gap)
    gain, hit = _clipped(ratio, row_sum(advantage, row, num_rows) / length, clip_low, clip_high)
    metrics = {
        "clip_fraction": (hit * length).sum() / count,
        "approx_kl": _k3(logprob.detach() - old_logprob).sum() / count,
    }
    return Loss(-(row_sum(weight, row, num_rows) * gain).sum() / denominator, metrics)


def reinforce_loss(logprob: Tensor, advantage: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """The score function: `L = -1/N sum_i w_i A_i logprob_i` (Williams 1992, doi:10.1007/BF00992696). `[M] -> []`"""
    same_shape("reinforce_loss", logprob=logprob, advantage=advantage, weight=weight)
    return Loss(-(weight * advantage * logprob).sum() / denominator)


def truncated_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    weight: Tensor,
    max_ratio: float,
    denominator: float,
    count: float,
) -> Loss:
    """Policy gradient with truncated importance weights: AIPO of LlamaRL (Wu et al. 2025, arXiv:2505.24034). `[M] -> []`

    L = -1/N sum_i w_i min(exp(logprob_i - old_logprob_i), max_ratio) A_i logprob_i       the minimum carries no gradient
    """
    same_shape("truncated_loss", logprob=logprob, old_logprob=old_logprob, advantage=advantage, weight=weight)
    gap = logprob.detach() - old_logprob
    ratio = torch.exp(gap)
    value = -(weight * ratio.clamp(max=max_ratio) * advantage * logprob).sum() / denominator
    metrics = {"clip_fraction": (ratio > max_ratio).float().sum() / count, "approx_kl": _k3(gap).sum() / count}
    return Loss(value, metrics)


def decoupled_policy_loss(
    logprob: Tensor,
    proximal_logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    weight: Tensor,
    clip_low: float,
    clip_high: float,
    behaviour: Literal["clamp", "mask"],
    behaviour_low: float,
    behaviour_high: float,
    denominator: float,
    count: float,
) -> Loss:
    """Clip around a recent policy; weigh by its ratio to the sampling one: AReaL (arXiv:2505.24298, eq. 5). `[M] -> []`

        b = exp(proximal_logprob - old_logprob)     kept within [behaviour_low, behaviour_high] (clamp), or 0 outside (mask)
        u = exp(logprob - proximal_logprob)
        L = -1/N sum_i w_i b_i min(u_i A_i, clip(u_i, 1 - clip_low, 1 + clip_high) A_i)

    No gradient flows through b. Masked tokens stay in the denominator, so that masking does not raise the rest.
    """
    tensors = {"old_logprob": old_logprob, "advantage": advantage, "weight": weight}
    same_shape("decoupled_policy_loss", logprob=logprob, proximal_logprob=proximal_logprob, **tensors)
    # two log-probabilities of minus infinity differ by NaN, which would spread over the whole loss
    gap = torch.nan_to_num(proximal_logprob - old_logprob, nan=0.0, posinf=0.0, neginf=0.0)
    ratio = torch.exp(gap)
    inside = (ratio >= behaviour_low) & (ratio <= behaviour_high)
    kept = ratio.clamp(behaviour_low, behaviour_high) if behaviour == "clamp" else ratio * inside
    gain, hit = _clipped(torch.exp(logprob - proximal_logprob), advantage, clip_low, clip_high)
    metrics = {
        "clip_fraction": hit.sum() / count,
        "approx_kl": _k3(logprob.detach() - old_logprob).sum() / count,
        "behaviour/outside": (~inside).float().sum() / count,
        "behaviour/mean": ratio.sum() / count,
    }
    return Loss(-(weight * kept * gain).sum() / denominator, metrics)


def log_linear_proximal(logprob: Tensor, old_logprob: Tensor, policy_version: Tensor, *, version: int) -> Tensor:
    """Proximal log-probabilities without a forward pass, from each token's version (AReaL's `loglinear`). `[M] -> [M]`

        log pi_prox = log mu + alpha (log pi - log mu),   alpha = (v - v_mu) / (v + 1 - v_mu), within [0, 1]

    The update starts from version v and goes to v + 1; mu sampled the token at v_mu. On fresh tokens pi_prox is mu, and the
    older a token is, the closer it is to pi. No gradient flows through it.
    """
    same_shape("log_linear_proximal", logprob=logprob, old_logprob=old_logprob, policy_version=policy_version)
    age = (version - policy_version).clamp(min=0).to(logprob.dtype)
    return old_logprob + age / (age + 1.0) * (logprob.detach() - old_logprob)


def sft_loss(logprob: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """Cross entropy of the demonstrated tokens: `-1/N sum_i w_i logprob_i`. `[M] -> []`"""
    same_shape("sft_loss", logprob=logprob, weight=weight)
    return Loss(-(weight * logprob).sum() / denominator)


def kl_loss(logprob: Tensor, reference_logprob: Tensor, *, weight: Tensor, denominator: float, count: float) -> Loss:
    """KL to a reference by the k3 estimator: `1/N sum_i w_i (exp(d_i) - d_i - 1)`, `d = reference - logprob`. `[M] -> []`

    Unbiased and never negative for tokens sampled from the policy (Schulman 2020, joschu.net/blog/kl-approx.html).
    """
    same_shape("kl_loss", logprob=logprob, reference_logprob=reference_logprob, weight=weight)
    term = _k3(reference_logprob - logprob)
    return Loss((weight * term).sum() / denominator, {"kl": term.detach().sum() / count})


def entropy_loss(entropy: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """Minus the mean entropy, to be added with a coefficient as a bonus: `-1/N sum_i w_i H_i`. `[M] -> []`"""
    same_shape("entropy_loss", entropy=entropy, weight=weight)
    return Loss(-(weight * entropy).sum() / denominator)


def token_value_loss(
    value: Tensor,
    old_value: Tensor,
    returns: Tensor,
    *,
    clip: float | None,
    denominator: float,
    weight: Tensor | None = None,
) -> Loss:
    """Squared error of a critic by token, clipped around its earlier values as in PPO. `[M] -> []`

    L = 1/(2N) sum_i w_i max((V_i - R_i)^2, (V_old_i + clamp(V_i - V_old_i, -clip, clip) - R_i)^2)

    All weights are 1 unless `weight` is given.
    """
    same_shape(
        "token_value_loss",
        value=value,
        old_value=old_value,
        returns=returns,
        weight=value.shape if weight is None else weight,
    )
    error = (value - returns) ** 2
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (near - returns) ** 2)
    if weight is not None:
        error, value, returns = error * weight, value * weight, returns * weight
    with torch.no_grad():
        metrics = {"value/mean": value.sum() / denominator, "value/return": returns.sum() / denominator}
    return Loss(0.5 * error.sum() / denominator, metrics)


def _clipped(ratio: Tensor, advantage: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The smaller of ratio and clipped ratio, each times advantage; and where the clipped one was the smaller."""
    clipped = ratio.clamp(1.0 - low, 1.0 + high)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    with torch.no_grad():
        hit = (ratio * advantage > clipped * advantage).float()
    return gain, hit


def _k3(d: Tensor) -> Tensor:
    """`exp(d) - d - 1`: never negative; its expectation is a KL divergence."""
    return torch.exp(d) - d - 1.0
