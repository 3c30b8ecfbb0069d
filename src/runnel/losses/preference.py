"""Losses on pairs of answers, one of which is preferred.

The rows of a pair (`unit`) are never separated, so any split of a batch between pairs gives the same sum.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from runnel.losses.base import Loss, same_shape
from runnel.ops.credit import row_sum


def dpo_loss(
    logprob: Tensor,
    reference_logprob: Tensor,
    sign: Tensor,
    *,
    unit: Tensor,
    num_units: int,
    beta: float,
    denominator: float,
) -> Loss:
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290, eq. 7). `[M] x 4 -> []`

        h_p = beta (sum over chosen tokens - sum over rejected tokens) of (logprob - reference_logprob)
        L   = -1/P sum_p log sigmoid(h_p)

    `sign` is 1 for tokens of the chosen answer and -1 for those of the rejected one; `unit` is the pair of a token.
    """
    same_shape("dpo_loss", logprob=logprob, reference_logprob=reference_logprob, sign=sign, unit=unit)
    gain = beta * (logprob - reference_logprob)
    margin = row_sum(sign * gain, unit, num_units)
    with torch.no_grad():
        metrics = _pair_metrics(margin, denominator)
        for name, side in (("chosen", 1.0), ("rejected", -1.0)):
            metrics[f"preference/reward_{name}"] = (gain * (sign == side)).sum() / denominator
    return Loss(-F.logsigmoid(margin).sum() / denominator, metrics)


def bradley_terry_loss(score: Tensor, sign: Tensor, *, unit: Tensor, num_units: int, denominator: float) -> Loss:
    """A reward model from comparisons (Bradley and Terry 1952; Ouyang et al. 2022, arXiv:2203.02155, eq. 1). `[M] x 3 -> []`

        L = -1/P sum_p log sigmoid(score(chosen_p) - score(rejected_p))

    There is one score a row; `sign` is 1 for the chosen and -1 for the rejected one of pair `unit`.
    """
    same_shape("bradley_terry_loss", score=score, sign=sign, unit=unit)
    margin = row_sum(sign * score, unit, num_units)
    return Loss(-F.logsigmoid(margin).sum() / denominator, _pair_metrics(margin.detach(), denominator))


def _pair_metrics(margin: Tensor, denominator: float) -> dict[str, Tensor]:
    return {
        "preference/accuracy": (margin > 0).float().sum() / denominator,
        "preference/margin": margin.sum() / denominator,
    }
