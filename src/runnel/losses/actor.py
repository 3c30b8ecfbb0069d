"""Losses of actors that learn from a critic, of those critics, and of SAC's temperature."""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.losses.base import Loss, same_shape


def ensemble_td_loss(q: Tensor, target: Tensor, *, weight: Tensor, denominator: float) -> Loss:
    """Half the squared temporal-difference error of each critic, summed over critics. `[S, B], [B], [B] -> []`

        L = sum_b weight_b sum_i (q_ib - target_b)^2 / 2 / denominator

    The critics share a target (Fujimoto et al. 2018, arXiv:1802.09477, alg. 1); `weight` undoes the bias of prioritised
    draws. The error of a row is |q - target|, averaged over critics.
    """
    same_shape("ensemble_td_loss", q_of_one_critic=q.shape[1:], target=target, weight=weight)
    error = q - target
    value = 0.5 * (error.square() * (weight / denominator)).sum()
    return Loss(value, per_row=error.detach().abs().mean(0))


def expectile_loss(value: Tensor, target: Tensor, *, expectile: float, denominator: float) -> Loss:
    """Expectile regression (Kostrikov et al. 2022, arXiv:2110.06169, eq. 5). `[B], [B] -> []`

        u = target - value,  L = sum |expectile - 1[u < 0]| u^2 / denominator

    At 0.5 the value tends to the mean of the targets, near 1 to the largest of them.
    """
    same_shape("expectile_loss", value=value, target=target)
    error = target - value
    weight = torch.where(error < 0.0, 1.0 - expectile, expectile)
    return Loss((weight * error.square()).sum() / denominator, per_row=error.detach().abs())


def deterministic_actor_loss(q: Tensor, *, denominator: float) -> Loss:
    """The deterministic policy gradient (Silver et al. 2014; Lillicrap et al. 2016, arXiv:1509.02971, eq. 6). `[S, B] -> []`

    L = -sum Q(s, mu(s)) / denominator
    """
    return Loss(-q.sum() / denominator)


def soft_actor_loss(q: Tensor, *, logprob: Tensor, temperature: Tensor, denominator: float) -> Loss:
    """The actor of SAC (Haarnoja et al. 2018, arXiv:1812.05905, eq. 9). `[S, B], [B], [] -> []`

        L = sum (temperature log pi(a | s) - min_i Q_i(s, a)) / denominator,  a = f(noise; s)

    The gradient reaches the policy through the log-density, and through the action of the smallest Q. Metrics: `entropy`.
    """
    same_shape("soft_actor_loss", q_of_one_critic=q.shape[1:], logprob=logprob)
    best = q.min(0).values  # of equal critics one gets the whole gradient; `amin` would divide it among them
    value = (temperature * logprob - best).sum() / denominator
    return Loss(value, {"entropy": -logprob.detach().sum() / denominator})


def soft_actor_loss_discrete(q: Tensor, *, logprobs: Tensor, temperature: Tensor, denominator: float) -> Loss:
    """The actor of SAC for discrete actions (Christodoulou 2019, arXiv:1910.07207, eq. 12). `[S, B, A], [B, A], [] -> []`

        L = sum_b sum_a pi_a (temperature log pi(a | s) - min_i Q_i(s, a)) / denominator

    The critics are constants: `q` carries no gradient. Metrics: `entropy`.
    """
    same_shape("soft_actor_loss_discrete", q_of_one_critic=q.shape[1:], logprobs=logprobs)
    probs = logprobs.exp()
    value = (probs * (temperature * logprobs - q.detach().amin(0))).sum() / denominator
    return Loss(value, {"entropy": -(probs * logprobs).detach().sum() / denominator})


def temperature_loss(log_temperature: Tensor, entropy: Tensor, *, target_entropy: Tensor | float) -> Loss:
    """Moves the temperature until the policy has `target_entropy` (Haarnoja et al. 2018, arXiv:1812.05905, eq. 18).

        L = temperature (entropy - target_entropy)

    `[], [] -> []`: `entropy` is the mean over the batch. The temperature is learned by its logarithm, which keeps it above 0.
    """
    target = target_entropy if isinstance(target_entropy, Tensor) else None
    same_shape("temperature_loss", log_temperature=log_temperature, entropy=entropy, target_entropy=target)
    return Loss(log_temperature.exp() * (entropy - target_entropy).detach())
