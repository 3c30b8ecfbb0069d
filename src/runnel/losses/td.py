"""Losses of Q-learning on temporal-difference targets, with their gradients written out.

Both gradients are one line of algebra. Written down, they spare a small update the graph that autograd would build for it;
the network behind the prediction takes the gradient from there.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from runnel.losses.base import same_shape


@dataclass
class Slope:
    """A loss `[]`, its gradient with respect to the prediction, and the error of each row `[...]` (its priority)."""

    value: Tensor
    grad: Tensor
    error: Tensor


def huber_td_loss(q: Tensor, target: Tensor, *, weight: Tensor, denominator: float, delta: float = 1.0) -> Slope:
    """Huber loss of a temporal-difference error with importance weights (Mnih et al. 2015; Schaul et al. 2016,
    arXiv:1511.05952, eq. 1 and sec. 3.4). All `[...]`.

        e = q - target,  h(e) = e^2 / 2 if |e| <= delta else delta (|e| - delta / 2)
        L = sum weight * h(e) / denominator,  dL/dq = weight * clip(e, -delta, delta) / denominator

    With c = clip(e), h(e) = c (e - c / 2). The error of a row is |e|.
    """
    same_shape("huber_td_loss", q=q, target=target, weight=weight)
    error = q - target
    clipped = error.clamp(-delta, delta)
    grad = clipped * weight / denominator
    return Slope((grad * (error - 0.5 * clipped)).sum(), grad, error.abs())


def categorical_td_loss(logits: Tensor, target: Tensor, *, weight: Tensor, denominator: float) -> Slope:
    """Cross entropy of a predicted value distribution, with importance weights (Bellemare et al. 2017, arXiv:1707.06887).

        p = softmax(logits),  L = -sum weight * sum_i target_i log p_i / denominator
        dL/dlogits = weight * (p - target) / denominator

    `[..., N], [..., N], [...] -> []`. The error of a row is KL(target || p), the cross entropy less what no prediction can
    avoid: it is what Rainbow takes for a priority (Hessel et al. 2018, arXiv:1710.02298).
    """
    same_shape("categorical_td_loss", logits=logits, target=target)
    same_shape("categorical_td_loss", logits_without_atoms=logits.shape[:-1], weight=weight)
    logprobs = logits.log_softmax(-1)
    cross = -(target * logprobs).sum(-1)
    entropy = -target.xlogy(target).sum(-1)
    grad = (logprobs.exp() - target) * (weight / denominator).unsqueeze(-1)
    return Slope((weight * cross).sum() / denominator, grad, (cross - entropy).clamp(min=0.0))
