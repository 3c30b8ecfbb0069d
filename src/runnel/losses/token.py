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
from runnel.ops.credit import group_sum, leave_one_out, row_sum


def policy_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    weight: Tensor,
    clip_low: float | None,
    clip_high: float | None,
    denominator: float,
    count: float,
    dual_clip: float | None = None,
    max_log_ratio: float | None = None,
) -> Loss:
    """Clipped surrogate, by token. All `[M] -> []`

        r = exp(logprob - old_logprob)
        g = min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
        L = -1/N sum_i w_i (g_i where A_i >= 0, else max(g_i, dual_clip A_i))

    PPO (Schulman et al. 2017, arXiv:1707.06347) on tokens; `clip_high > clip_low` is DAPO's asymmetric clip (Yu et al.
    2025, arXiv:2503.14476). `dual_clip` bounds what a single token with a negative advantage can do whose probability rose much
    (Ye et al. 2020, arXiv:1912.09729, eq. 5). A bound that is None is none. `max_log_ratio` cuts `logprob - old_logprob` before
    the exponential, so that it cannot overflow (StableReinforce's pre-clip, Zhang et al. 2025, arXiv:2505.02835).
    """
    same_shape("policy_loss", logprob=logprob, old_logprob=old_logprob, advantage=advantage, weight=weight)
    gap = logprob - old_logprob
    ratio = torch.exp(gap if max_log_ratio is None else gap.clamp(-max_log_ratio, max_log_ratio))
    gain, hit = _clipped(ratio, advantage, clip_low, clip_high, dual_clip)
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
    clip_low: float | None,
    clip_high: float | None,
    denominator: float,
    count: float,
    mean: bool = True,
    dual_clip: float | None = None,
) -> Loss:
    """Clipped surrogate of whole sequences: GSPO (Zheng et al. 2025, arXiv:2507.18071, eq. 5 to 7). All `[M] -> []`

        s_i = exp(1/|y_i| sum_t (logprob_it - old_logprob_it))
        L   = -1/N sum_i w_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

    `row` has the sequence of each token, of `num_rows`. The weight w_i of a sequence is the sum of its tokens' weights, 1
    where each has 1/|y_i|; its advantage is the mean of theirs. Without `mean` the ratio is that of the sequence's probability,
    `s_i = exp(sum_t (logprob_it - old_logprob_it))`. `dual_clip` is that of `policy_loss`.
    """
    tensors = {"old_logprob": old_logprob, "advantage": advantage, "row": row, "weight": weight}
    same_shape("sequence_policy_loss", logprob=logprob, **tensors)
    length = row_sum(torch.ones_like(logprob), row, num_rows).clamp(min=1.0)
    gap = row_sum(logprob - old_logprob, row, num_rows)
    ratio = torch.exp(gap / length if mean else gap)
    gain, hit = _clipped(ratio, row_sum(advantage, row, num_rows) / length, clip_low, clip_high, dual_clip)
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
    min_ratio: float = 0.0,
    row: Tensor | None = None,
    num_rows: int = 0,
    denominator: float,
    count: float,
) -> Loss:
    """Policy gradient with importance weights that are kept within bounds and carry no gradient. `[M] -> []`

        r_i = exp(logprob_i - old_logprob_i)
        L   = -1/N sum_i w_i clip(r_i, min_ratio, max_ratio) A_i logprob_i

    AIPO of LlamaRL (Wu et al. 2025, arXiv:2505.24034) and CISPO (MiniMax 2025, arXiv:2506.13585, eq. 4 and 5). With `row` (of
    `num_rows`) the weight of a token is that of its whole sequence, the product of the ratios of its tokens (A-LoL, Baheti et
    al. 2024, arXiv:2305.14718).
    """
    same_shape("truncated_loss", logprob=logprob, old_logprob=old_logprob, advantage=advantage, weight=weight, row=row)
    gap = logprob.detach() - old_logprob
    ratio = torch.exp(gap if row is None else row_sum(gap, row, num_rows)[row])
    value = -(weight * ratio.clamp(min_ratio, max_ratio) * advantage * logprob).sum() / denominator
    outside = (ratio > max_ratio) | (ratio < min_ratio)
    return Loss(value, {"clip_fraction": outside.float().sum() / count, "approx_kl": _k3(gap).sum() / count})


def tapered_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    row: Tensor,
    num_rows: int,
    weight: Tensor,
    denominator: float,
    count: float,
) -> Loss:
    """Tapered off-policy REINFORCE: TOPR (Le Roux et al. 2025, arXiv:2503.14286, sec. 3). `[M] -> []`

        r_i = prod_t exp(logprob_it - old_logprob_it)
        L   = -1/N sum_i sum_t w_it c_i A_it logprob_it         c_i = 1 where A_it >= 0, else min(r_i, 1); no gradient through c

    `row` has the sequence of each token, of `num_rows`. What was good is imitated, however unlikely it is now; what was bad
    stops counting once the policy has left it.
    """
    tensors = {"old_logprob": old_logprob, "advantage": advantage, "row": row, "weight": weight}
    same_shape("tapered_loss", logprob=logprob, **tensors)
    gap = logprob.detach() - old_logprob
    ratio = torch.exp(row_sum(gap, row, num_rows)[row].clamp(max=0.0))
    taper = torch.where(advantage < 0, ratio, torch.ones_like(ratio))
    metrics = {"taper": taper.sum() / count, "approx_kl": _k3(gap).sum() / count}
    return Loss(-(weight * taper * advantage * logprob).sum() / denominator, metrics)


def mirror_descent_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    row: Tensor,
    num_rows: int,
    weight: Tensor,
    tau: float,
    denominator: float,
    count: float,
) -> Loss:
    """Online policy mirror descent of Kimi k1.5 (Kimi Team 2025, arXiv:2501.12599, sec. 2.3.2, eq. 3). `[M] -> []`

        d_i = sum_t (logprob_it - old_logprob_it)
        L   = -1/N sum_i (sum_t w_it A_it logprob_it - tau/2 W_i d_i^2)

    `row` has the sequence of each token; W_i is the mean weight of its tokens. The square keeps the policy near the one that
    sampled, of whatever version, without an importance weight.
    """
    tensors = {"old_logprob": old_logprob, "advantage": advantage, "row": row, "weight": weight}
    same_shape("mirror_descent_loss", logprob=logprob, **tensors)
    length = row_sum(torch.ones_like(logprob), row, num_rows).clamp(min=1.0)
    gap = row_sum(logprob - old_logprob, row, num_rows)
    squares = row_sum(weight, row, num_rows) / length * gap**2
    value = (0.5 * tau * squares.sum() - (weight * advantage * logprob).sum()) / denominator
    with torch.no_grad():
        metrics = {"mirror/square": (squares * length).sum() / count, "approx_kl": _k3(logprob - old_logprob).sum() / count}
    return Loss(value, metrics)


def score_label_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    label: Tensor,
    *,
    row: Tensor,
    group: Tensor,
    weight: Tensor,
    beta: float,
    denominator: float,
    count: float,
) -> Loss:
    """Rewards as labels of a score that the policy itself gives: PACS (Li et al. 2025, arXiv:2509.02522, sec. 3). `[M] -> []`

        s_i   = beta sum_t (logprob_it - old_logprob_it)
        psi_i = s_i - mean_{j != i} s_j                                            over the other sequences of its group
        L     = -1/N sum_i W_i (R_i log sigmoid(psi_i) + (1 - R_i) log sigmoid(-psi_i))

    `row` numbers sequences, `group` groups; `label` has the R_i in [0, 1] of each token's sequence, W_i is the mean weight of
    its tokens. All sequences of a group must be here: the gradient of one runs through the others.
    """
    tensors = {"old_logprob": old_logprob, "label": label, "row": row, "group": group, "weight": weight}
    same_shape("score_label_loss", logprob=logprob, **tensors)
    found, row = torch.unique(row, return_inverse=True)
    num = len(found)
    length = row_sum(torch.ones_like(logprob), row, num)
    score = beta * row_sum(logprob - old_logprob, row, num)
    share, truth = (row_sum(x.to(logprob.dtype), row, num) / length for x in (weight, label))
    # the group of a sequence is that of any of its tokens
    psi = leave_one_out(score, torch.zeros_like(found).scatter(0, row, group))
    each = torch.nn.functional.binary_cross_entropy_with_logits(psi, truth, reduction="none")
    with torch.no_grad():
        right = ((psi > 0) == (truth > 0.5)).to(length.dtype)
        metrics = {"pacs/accuracy": (right * length).sum() / count, "approx_kl": _k3(logprob - old_logprob).sum() / count}
    return Loss((share * each).sum() / denominator, metrics)


def pairwise_policy_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    reward: Tensor,
    *,
    row: Tensor,
    group: Tensor,
    clip: float | None,
    max_ratio: float,
    denominator: float,
    count: float,
) -> Loss:
    """PPO on all pairs of sequences of a group: P3O (Wu et al. 2023, arXiv:2310.00212). `[M] -> []`

        d_i  = sum_t (logprob_it - old_logprob_it),   d_ij = d_i - d_j,   A_ij = (R_i - R_j) / 2
        w_ij = min(exp(d_i + d_j), max_ratio)                                                    no gradient through w
        L    = -1/N sum_groups 2 / (K - 1) sum_{i<j} w_ij min(A_ij d_ij, A_ij clip(d_ij, -clip, clip))

    `row` numbers sequences, `group` groups of K of them; `reward` has the R_i of each token's sequence. All sequences of a
    group must be here. With N the number of sequences, groups of one size count alike.
    """
    same_shape("pairwise_policy_loss", logprob=logprob, old_logprob=old_logprob, reward=reward, row=row, group=group)
    found, row = torch.unique(row, return_inverse=True)
    num = len(found)
    length = row_sum(torch.ones_like(logprob), row, num)
    gap = row_sum(logprob - old_logprob, row, num)
    paid = row_sum(reward.to(logprob.dtype), row, num) / length
    # the group of a sequence is that of any of its tokens
    mine = torch.zeros_like(found).scatter(0, row, group)
    size = group_sum(torch.ones_like(length), mine)
    i, j = (mine[:, None] == mine[None, :]).triu(1).nonzero(as_tuple=True)
    moved, half = gap[i] - gap[j], 0.5 * (paid[i] - paid[j])
    near = moved if clip is None else moved.clamp(-clip, clip)
    weight = torch.exp(gap[i] + gap[j]).detach().clamp(max=max_ratio)
    gain = torch.minimum(half * moved, half * near)
    with torch.no_grad():
        hit = (half * moved > half * near).to(length.dtype)
        share = (row_sum(hit, i, num) + row_sum(hit, j, num)) / (size - 1.0).clamp(min=1.0)
        metrics = {"clip_fraction": (share * length).sum() / count, "approx_kl": _k3(logprob - old_logprob).sum() / count}
    return Loss(-(2.0 / (size[i] - 1.0) * weight * gain).sum() / denominator, metrics)


def external_loss(
    logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    weight: Tensor,
    vocab_size: int,
    focus: float,
    denominator: float,
    count: float,
) -> Loss:
    """Policy gradient on tokens that someone unknown made: RL-PLUS (Dong et al. 2025, arXiv:2508.00222). `[M] -> []`

        omega_i = (old_i + 1 / vocab_size) / 2            what is guessed of who made the token;  old_i = exp(old_logprob_i)
        r_i     = 2 pi_i / (omega_i + old_i)              multiple importance sampling;           pi_i = exp(logprob_i)
        L       = -1/N sum_i w_i r_i (1 - pi_i)^focus A_i                                         no gradient through (1 - pi_i)

    The old policy in the divisor keeps the weight below 4/3 pi_i / old_i, and the guess keeps it below 4 vocab_size pi_i.
    """
    same_shape("external_loss", logprob=logprob, old_logprob=old_logprob, advantage=advantage, weight=weight)
    pi, old = torch.exp(logprob), torch.exp(old_logprob)
    ratio = 2.0 * pi / (0.5 * (old + 1.0 / vocab_size) + old)
    unlikely = (1.0 - pi.detach()).clamp(min=0.0) ** focus
    with torch.no_grad():
        metrics = {"external/ratio": ratio.sum() / count, "external/probability": pi.sum() / count}
    return Loss(-(weight * ratio * unlikely * advantage).sum() / denominator, metrics)


def distance_loss(logprob: Tensor, old_logprob: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """What holds tokens to the policy that sampled them: `1/N sum_i w_i |logprob_i - old_logprob_i|`. `[M] -> []`

    KL-Cov (Cui et al. 2025, arXiv:2505.22617, sec. 4.2), where `weight` is above 0 at few tokens only.
    """
    same_shape("distance_loss", logprob=logprob, old_logprob=old_logprob, weight=weight)
    return Loss((weight * (logprob - old_logprob).abs()).sum() / denominator)


def decoupled_policy_loss(
    logprob: Tensor,
    proximal_logprob: Tensor,
    old_logprob: Tensor,
    advantage: Tensor,
    *,
    weight: Tensor,
    clip_low: float | None,
    clip_high: float | None,
    behaviour: Literal["clamp", "mask"],
    behaviour_low: float,
    behaviour_high: float,
    denominator: float,
    count: float,
    row: Tensor | None = None,
    num_rows: int = 0,
    dual_clip: float | None = None,
) -> Loss:
    """Clip around a recent policy; weigh by its ratio to the sampling one: AReaL (arXiv:2505.24298, eq. 5). `[M] -> []`

        b = exp(proximal_logprob - old_logprob)     kept within [behaviour_low, behaviour_high] (clamp), or 0 outside (mask)
        u = exp(logprob - proximal_logprob)
        L = -1/N sum_i w_i b_i min(u_i A_i, clip(u_i, 1 - clip_low, 1 + clip_high) A_i)

    No gradient flows through b. Masked tokens stay in the denominator, so that masking does not raise the rest. With `row`
    (of `num_rows`) b is that of the whole sequence, the product over its tokens. Where `proximal_logprob` is the learner's
    own, of the weights that also sampled, b is the mismatch of engine and learner: clamp is truncated importance sampling
    (TIS, Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"), mask is masked
    importance sampling (MIS, Liu et al. 2025, "When speed kills stability"). `dual_clip` is that of `policy_loss`.
    """
    tensors = {"old_logprob": old_logprob, "advantage": advantage, "weight": weight, "row": row}
    same_shape("decoupled_policy_loss", logprob=logprob, proximal_logprob=proximal_logprob, **tensors)
    # two log-probabilities of minus infinity differ by NaN, which would spread over the whole loss
    gap = torch.nan_to_num(proximal_logprob - old_logprob, nan=0.0, posinf=0.0, neginf=0.0)
    ratio = torch.exp(gap if row is None else row_sum(gap, row, num_rows)[row])
    inside = (ratio >= behaviour_low) & (ratio <= behaviour_high)
    kept = ratio.clamp(behaviour_low, behaviour_high) if behaviour == "clamp" else ratio * inside
    gain, hit = _clipped(torch.exp(logprob - proximal_logprob), advantage, clip_low, clip_high, dual_clip)
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


def _clipped(
    ratio: Tensor, advantage: Tensor, low: float | None, high: float | None, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """The smaller of ratio and clipped ratio, each times advantage, but for negative advantages no less than `dual` times them;
    and where a bound counted."""
    lowest, highest = None if low is None else 1.0 - low, None if high is None else 1.0 + high
    clipped = ratio if lowest is highest is None else ratio.clamp(lowest, highest)
    gain = torch.minimum(ratio * advantage, clipped * advantage)
    with torch.no_grad():
        hit = (ratio * advantage > clipped * advantage).float()
    if dual is not None:
        limit = dual * advantage
        with torch.no_grad():
            hit = torch.maximum(hit, ((advantage < 0) & (gain < limit)).float())
        gain = torch.where(advantage < 0, torch.maximum(gain, limit), gain)
    return gain, hit


def _k3(d: Tensor) -> Tensor:
    """`exp(d) - d - 1`: never negative; its expectation is a KL divergence."""
    return torch.exp(d) - d - 1.0
