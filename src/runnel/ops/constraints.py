"""Costs under a limit: the Lagrangian of a policy's return, and how its multipliers move (Altman 1999, "Constrained Markov
decision processes"; Ray, Achiam & Amodei 2019, "Benchmarking safe exploration in deep reinforcement learning").

The problem `max J_r subject to J_i <= d_i` becomes `max over policies, min over multipliers >= 0` of
`J_r - sum_i multiplier_i (J_i - d_i)`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lagrangian_advantage(advantage: Tensor, cost_advantages: Tensor, multipliers: Tensor) -> Tensor:
    """The advantage that a policy under constraints climbs. `[...], [C, ...], [C] -> [...]`

        A = (A_r - sum_i multiplier_i A_i) / (1 + sum_i multiplier_i)

    The division keeps its size where multipliers are large.

    >>> lagrangian_advantage(torch.tensor([1.0, 2.0]), torch.tensor([[1.0, -2.0]]), torch.tensor([3.0])).tolist()
    [-0.5, 2.0]
    """
    penalty: Tensor = torch.tensordot(multipliers, cost_advantages, dims=1)
    return (advantage - penalty) / (1.0 + multipliers.sum())


def next_multipliers(integral: Tensor, excess: Tensor, *, lr: float, proportional: float) -> tuple[Tensor, Tensor]:
    """Integral and multipliers after a step of gradient ascent, by the `excess` of each cost over its limit. `[C]` each

        integral'   = max(0, integral + lr excess)
        multiplier' = max(0, integral' + proportional excess)

    With `proportional` 0 the multiplier is the integral. It answers what happened updates ago, so a cost swings about its
    limit; the other term damps that (Stooke et al. 2020, arXiv:2007.03964, alg. 2 with a derivative gain of 0).

    >>> integral, multipliers = next_multipliers(torch.tensor([1.0, 0.5]), torch.tensor([2.0, -2.0]), lr=0.5, proportional=0.25)
    >>> integral.tolist(), multipliers.tolist()
    ([2.0, 0.0], [2.5, 0.0])
    """
    after = (integral + lr * excess).clamp(min=0.0)
    return after, (after + proportional * excess).clamp(min=0.0)
