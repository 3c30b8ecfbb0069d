"""Losses of Q-learning on temporal-difference targets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from runnel.losses.base import Loss, same_shape


def huber_td_loss(q: Tensor, target: Tensor, *, weight: Tensor, denominator: float, delta: float = 1.0) -> Loss:
    """Huber loss of a temporal-difference error with importance weights (Mnih et al. 2015; Schaul et al. 2016,
    arXiv:1511.05952, eq. 1 and sec. 3.4). All `[...]`.

        e = q - target,  h(e) = e^2 / 2 if |e| <= delta else delta (|e| - delta / 2)
        L = sum weight * h(e) / denominator

    With an infinite `delta` all errors are squared. The error of a row is |e|.
    """
    same_shape("huber_td_loss", q=q, target=target, weight=weight)
    value = (weight * F.huber_loss(q, target, delta=delta, reduction="none")).sum() / denominator
    return Loss(value, per_row=(q - target).detach().abs())


def categorical_td_loss(logits: Tensor, target: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """Cross entropy of a predicted value distribution, with importance weights (Bellemare et al. 2017, arXiv:1707.06887).

        p = softmax(logits),  L = -sum weight * sum_i target_i log p_i / denominator

    `[..., N], [..., N], [...] -> []`. The error of a row is KL(target || p): the cross entropy without the entropy of the
    target, which no prediction can avoid. Rainbow uses it as a priority (Hessel et al. 2018, arXiv:1710.02298).
    """
    same_shape("categorical_td_loss", logits=logits, target=target)
    same_shape("categorical_td_loss", logits_without_atoms=logits.shape[:-1], weight=weight)
    cross = -(target * logits.log_softmax(-1)).sum(-1)
    with torch.no_grad():
        entropy = -target.xlogy(target).sum(-1)  # 0 log 0 is 0 in `xlogy`, NaN in a product
        divergence = (cross - entropy).clamp(min=0.0)
    return Loss((weight * cross).sum() / denominator, per_row=divergence)
