"""How well an action can be told from what it did: a lower bound of empowerment, by coordinates of the action."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus

from runnel.ops.distributions import HALF_LOG_TWO_PI, LOG_TWO


def squashed_logprobs(mean: Tensor, log_std: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """As `squashed_gaussian`, with the log-density of each coordinate of the action. `[B, D]` each `-> [B, D], [B, D]`

    a_i = tanh(u_i),  u = mean + std z,  log p(a_i) = log N(u_i) - log(1 - tanh(u_i)^2)
    """
    u = mean + log_std.exp() * z
    log_slope = 2.0 * (LOG_TWO - u - softplus(-2.0 * u))
    return u.tanh(), -(0.5 * z.square() + log_std + log_slope) - HALF_LOG_TWO_PI


def gaussian_logprobs(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(x_i; mean_i, std_i) of each coordinate. `[B, D]` each `-> [B, D]`"""
    return -0.5 * ((x - mean) * (-log_std).exp()).square() - log_std - HALF_LOG_TWO_PI


def weighted_information(told: Tensor, chosen: Tensor, *, weight: Tensor) -> Tensor:
    """One sample of the information of an action in the state after it. `[B, D], [B, D], [D] -> [B]`

        I_w = sum_i w_i (log q(a_i | s, s') - log pi(a_i | s)),   a ~ pi(. | s)

    With w = 1 its mean is at most I(a; s' | s), for any q (Barber & Agakov 2003), if pi is a product over coordinates. The
    weights say which coordinates count.
    """
    return ((told - chosen) * weight).sum(-1)
