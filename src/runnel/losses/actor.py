"""Losses of actors that learn from a critic, of the critics they learn from, and of SAC's temperature.

Each comes with its gradient with respect to what the networks gave, a line of algebra; the networks take it from there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.losses.base import Loss, same_shape
from runnel.losses.td import Slope


@dataclass
class ActorSlope:
    """A loss `[]`, the policy's mean entropy `[]`, and the gradients of the loss: of the critics' values, where it passes
    through them, and of the policy's log-densities or (discrete) logits."""

    value: Tensor
    entropy: Tensor
    to_q: Tensor
    to_policy: Tensor


def ensemble_td_loss(q: Tensor, target: Tensor, *, weight: Tensor, denominator: float) -> Slope:
    """Half the squared temporal-difference error of each critic, summed over critics. `[S, B], [B], [B] -> []`

        L = sum_b weight_b sum_i (q_ib - target_b)^2 / 2 / denominator,  dL/dq = weight (q - target) / denominator

    The critics share a target (Fujimoto et al. 2018, arXiv:1802.09477, alg. 1); `weight` undoes the bias of prioritised
    draws. The error of a row is |q - target|, averaged over critics.
    """
    same_shape("ensemble_td_loss", q_of_one_critic=q.shape[1:], target=target, weight=weight)
    error = q - target
    grad = error * (weight / denominator)
    return Slope(0.5 * (error * grad).sum(), grad, error.abs().mean(0))


def deterministic_actor_loss(q: Tensor, *, denominator: float) -> Slope:
    """The deterministic policy gradient (Silver et al. 2014; Lillicrap et al. 2016, arXiv:1509.02971, eq. 6). `[S, B] -> []`

        L = -sum Q(s, mu(s)) / denominator,  dL/dQ = -1 / denominator

    The error of a row has no meaning here, and is -Q.
    """
    return Slope(-q.sum() / denominator, torch.full_like(q, -1.0 / denominator), -q)


def soft_actor_loss(q: Tensor, *, logprob: Tensor, temperature: Tensor, denominator: float) -> ActorSlope:
    """The actor of SAC (Haarnoja et al. 2018, arXiv:1812.05905, eq. 9). `[S, B], [B], [] -> []`

        L = sum (temperature log pi(a | s) - min_i Q_i(s, a)) / denominator,  a = f(noise; s)

    The gradient reaches the policy by the log-density, and by the smallest Q through the action.
    """
    same_shape("soft_actor_loss", q_of_one_critic=q.shape[1:], logprob=logprob)
    best, which = q.min(0)
    entropy = logprob.sum() * (-1.0 / denominator)
    value = best.sum() * (-1.0 / denominator) - temperature * entropy
    to_q = torch.zeros_like(q).scatter_(0, which.unsqueeze(0), -1.0 / denominator)
    return ActorSlope(value, entropy, to_q, (temperature / denominator).expand_as(logprob))


def soft_actor_loss_discrete(q: Tensor, *, logprobs: Tensor, temperature: Tensor, denominator: float) -> ActorSlope:
    """The actor of SAC for discrete actions (Christodoulou 2019, arXiv:1910.07207, eq. 12). `[S, B, A], [B, A], [] -> []`

        c_a = temperature log pi(a | s) - min_i Q_i(s, a),  L = sum_b sum_a pi_a c_a / denominator
        dL/dlogit_a = pi_a (c_a - sum_a pi_a c_a) / denominator

    The critics are constants, and get no gradient (`to_q` is empty).
    """
    same_shape("soft_actor_loss_discrete", q_of_one_critic=q.shape[1:], logprobs=logprobs)
    probs = logprobs.exp()
    cost = temperature * logprobs - q.amin(0)
    mean = (probs * cost).sum(-1, keepdim=True)
    entropy = -(probs * logprobs).sum() / denominator
    return ActorSlope(mean.sum() / denominator, entropy, q.new_empty(0), probs * (cost - mean) / denominator)


def temperature_loss(temperature: Tensor, entropy: Tensor, *, target_entropy: Tensor | float) -> Loss:
    """Moves the temperature until the policy has `target_entropy` (Haarnoja et al. 2018, arXiv:1812.05905, eq. 18).

        L = temperature (entropy - target_entropy)

    `[], [] -> []`: `entropy` is the mean over the batch. With respect to the logarithm of the temperature, the gradient of
    this loss is the loss.
    """
    target = target_entropy if isinstance(target_entropy, Tensor) else None
    same_shape("temperature_loss", temperature=temperature, entropy=entropy, target_entropy=target)
    return Loss(temperature * (entropy - target_entropy))
