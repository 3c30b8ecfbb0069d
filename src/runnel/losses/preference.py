"""Losses on pairs of answers, one of which is preferred, and on single answers that are good or bad.

The rows of a pair (`unit`) are never separated, so any split of a batch between pairs gives the same sum.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.losses.base import Loss, same_shape
from runnel.ops.credit import row_sum

Form = Literal["sigmoid", "hinge"]
"""What a margin costs: the logistic loss, or how far it is below 1."""


def dpo_loss(
    logprob: Tensor,
    reference_logprob: Tensor,
    sign: Tensor,
    *,
    unit: Tensor,
    num_units: int,
    beta: float,
    denominator: float,
    form: Form = "sigmoid",
    smoothing: float = 0.0,
) -> Loss:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7). `[M] x 4 -> []`

        h_p = beta (sum over chosen tokens - sum over rejected tokens) of (logprob - reference_logprob)
        L   = -1/P sum_p (1 - smoothing) log sigmoid(h_p) + smoothing log sigmoid(-h_p)        (sigmoid)
        L   =  1/P sum_p max(0, 1 - h_p)                                                       (hinge)

    `sign` is 1 for tokens of the chosen answer and -1 for those of the rejected one; `unit` is the pair of a token. The hinge
    is that of SLiC-HF (Zhao et al. 2023, arXiv:2305.10425, eq. 1) on DPO's margin. `smoothing` is the share of pairs that may
    be the wrong way round (Mitchell 2023, "A note on DPO with noisy preferences").
    """
    same_shape("dpo_loss", logprob=logprob, reference_logprob=reference_logprob, sign=sign, unit=unit)
    gain = beta * (logprob - reference_logprob)
    margin = row_sum(sign * gain, unit, num_units)
    with torch.no_grad():
        metrics = _pair_metrics(margin, denominator)
        for name, side in (("chosen", 1.0), ("rejected", -1.0)):
            metrics[f"preference/reward_{name}"] = (gain * (sign == side)).sum() / denominator
    if form == "hinge":
        return Loss(torch.relu(1.0 - margin).sum() / denominator, metrics)
    value = -(1.0 - smoothing) * F.logsigmoid(margin)
    if smoothing:
        value = value - smoothing * F.logsigmoid(-margin)
    return Loss(value.sum() / denominator, metrics)


def pair_regression_loss(
    logprob: Tensor,
    base_logprob: Tensor,
    sign: Tensor,
    target: Tensor,
    *,
    unit: Tensor,
    num_units: int,
    scale: float,
    denominator: float,
) -> Loss:
    """Squared error of the difference between two answers' log-ratios. `[M] x 5 -> []`

        h_p = scale (sum over chosen tokens - sum over rejected tokens) of (logprob - base_logprob)
        L   = 1/P sum_p (h_p - target_p)^2

    IPO (Azar et al. 2023, arXiv:2310.12036, eq. 17): base is the reference, scale 1, target 1 / (2 beta). REBEL (Gao et al.
    2024, arXiv:2404.16767): base is the policy that sampled, scale 1 / eta, target the difference of the rewards. INPO (Zhang
    et al. 2024, arXiv:2407.00617): base is a mean of reference and sampler, scale 1, target 1 / (2 eta). The target of a pair
    is the sum of its tokens'.
    """
    same_shape("pair_regression_loss", logprob=logprob, base_logprob=base_logprob, sign=sign, target=target, unit=unit)
    margin = row_sum(sign * (logprob - base_logprob) * scale, unit, num_units)
    error = (margin - row_sum(target, unit, num_units)) ** 2
    metrics = _pair_metrics(margin.detach(), denominator) | {"preference/error": error.detach().sum() / denominator}
    return Loss(error.sum() / denominator, metrics)


def simpo_loss(
    logprob: Tensor, sign: Tensor, *, weight: Tensor, unit: Tensor, num_units: int, beta: float, gap: float, denominator: float
) -> Loss:
    """Simple preference optimisation (Meng et al. 2024, arXiv:2405.14734, eq. 6). `[M] x 4 -> []`

        h_p = beta (mean of logprob over chosen tokens - mean over rejected tokens)
        L   = -1/P sum_p log sigmoid(h_p - gap)

    There is no reference: the mean log-probability is what is compared. `weight` is 1 / (number of tokens of the answer).
    """
    same_shape("simpo_loss", logprob=logprob, sign=sign, weight=weight, unit=unit)
    margin = beta * row_sum(sign * weight * logprob, unit, num_units)
    return Loss(-F.logsigmoid(margin - gap).sum() / denominator, _pair_metrics(margin.detach(), denominator))


def odds_ratio_loss(logprob: Tensor, sign: Tensor, *, weight: Tensor, unit: Tensor, num_units: int, denominator: float) -> Loss:
    """The odds ratio of ORPO (Hong et al. 2024, arXiv:2403.07691, eq. 4, 5 and 7). `[M] x 4 -> []`

        P(y)  = exp(mean of logprob over the tokens of y),   odds(y) = P(y) / (1 - P(y))
        L     = -1/P sum_p log sigmoid(log odds(chosen_p) - log odds(rejected_p))

    `weight` is 1 / (number of tokens of the answer).
    """
    same_shape("odds_ratio_loss", logprob=logprob, sign=sign, weight=weight, unit=unit)
    margin = torch.zeros(num_units, dtype=logprob.dtype, device=logprob.device)
    for side in (1.0, -1.0):
        mean = row_sum((sign == side) * weight * logprob, unit, num_units)
        # an answer of probability 1 has infinite odds, and no slope: log(1 - P) is read a little below it
        margin = margin + side * (mean - torch.log(-torch.expm1(mean.clamp(max=-1e-6))))
    return Loss(-F.logsigmoid(margin).sum() / denominator, _pair_metrics(margin.detach(), denominator))


def rank_loss(logprob: Tensor, sign: Tensor, *, weight: Tensor, unit: Tensor, num_units: int, denominator: float) -> Loss:
    """The ranking loss of RRHF on pairs (Yuan et al. 2023, arXiv:2304.05302, eq. 2). `[M] x 4 -> []`

        L = 1/P sum_p max(0, mean of logprob over rejected tokens - mean over chosen tokens)

    `weight` is 1 / (number of tokens of the answer).
    """
    same_shape("rank_loss", logprob=logprob, sign=sign, weight=weight, unit=unit)
    margin = row_sum(sign * weight * logprob, unit, num_units)
    return Loss(torch.relu(-margin).sum() / denominator, _pair_metrics(margin.detach(), denominator))


def kto_loss(
    logprob: Tensor,
    reference_logprob: Tensor,
    sign: Tensor,
    point: Tensor,
    *,
    weight: Tensor,
    unit: Tensor,
    num_units: int,
    beta: float,
    good_weight: float,
    bad_weight: float,
    denominator: float,
) -> Loss:
    """Kahneman-Tversky optimisation (Ethayarajh et al. 2024, arXiv:2402.01306, eq. 8). `[M] x 6 -> []`

        r_u = sum over the answer's tokens of (logprob - reference_logprob)
        L   = 1/U sum_u lambda_u [1 - sigmoid(s_u beta (r_u - z0))]

    `sign` s is 1 for a good answer, with `good_weight` as its lambda, and -1 for a bad one, with `bad_weight`. `point` is z0,
    the same at every token, without a gradient. `weight` is 1 / (number of tokens of the answer).
    """
    same_shape(
        "kto_loss",
        logprob=logprob,
        reference_logprob=reference_logprob,
        sign=sign,
        point=point,
        weight=weight,
        unit=unit,
    )
    # z0 is shared out over the answer's tokens, so that one sum makes the margin of an answer
    margin = beta * row_sum(sign * (logprob - reference_logprob - weight * point.detach()), unit, num_units)
    share = row_sum(torch.where(sign > 0, good_weight * weight, bad_weight * weight), unit, num_units)
    return Loss((share * torch.sigmoid(-margin)).sum() / denominator, _pair_metrics(margin.detach(), denominator))


def bradley_terry_loss(
    score: Tensor,
    sign: Tensor,
    *,
    unit: Tensor,
    num_units: int,
    denominator: float,
    margin: Tensor | None = None,
    weight: Tensor | None = None,
) -> Loss:
    """A reward model from comparisons (Bradley and Terry 1952; Ouyang et al. 2022, arXiv:2203.02155, eq. 1). `[M] x 5 -> []`

        L = -1/P sum_p w_p log sigmoid(score(chosen_p) - score(rejected_p) - m_p)

    There is one score a row; `sign` is 1 for the chosen and -1 for the rejected one of pair `unit`. `margin` m says by how much
    the chosen one shall be ahead (Touvron et al. 2023, arXiv:2307.09288, eq. 2), `weight` w how much the pair counts (the
    scaled loss of Wang et al. 2024, arXiv:2410.01257); each is the sum over the pair's rows. Without them m is 0 and w is 1.
    """
    same_shape("bradley_terry_loss", score=score, sign=sign, unit=unit, margin=margin, weight=weight)
    ahead = row_sum(sign * score, unit, num_units)
    value = -F.logsigmoid(ahead if margin is None else ahead - row_sum(margin, unit, num_units))
    if weight is not None:
        value = value * row_sum(weight, unit, num_units)
    return Loss(value.sum() / denominator, _pair_metrics(ahead.detach(), denominator))


def score_regression_loss(score: Tensor, target: Tensor, *, denominator: float) -> Loss:
    """A reward model from scores (Wang et al. 2024, arXiv:2410.01257, sec. 3). `[M] x 2 -> []`

    L = 1/R sum_r (score_r - target_r)^2
    """
    same_shape("score_regression_loss", score=score, target=target)
    value = ((score - target) ** 2).sum() / denominator
    return Loss(value, {"preference/error": value.detach()})


def _pair_metrics(margin: Tensor, denominator: float) -> dict[str, Tensor]:
    return {
        "preference/accuracy": (margin > 0).float().sum() / denominator,
        "preference/margin": margin.sum() / denominator,
    }
