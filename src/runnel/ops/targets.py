"""Targets of temporal-difference learning with several critics: what Q(s, a) should have been.

`discount` comes from replay (`data/replay.py`): gamma for one step, gamma^m for m steps, and 0 where the episode terminated.
A truncated episode keeps its discount, because it bootstraps from the observation at which it was cut.
"""

from __future__ import annotations

import torch
from torch import Tensor


def min_target(reward: Tensor, discount: Tensor, next_q: Tensor) -> Tensor:
    """Clipped double Q-learning (Fujimoto et al. 2018, arXiv:1802.09477, eq. 10). `[B], [B], [S, B] -> [B]`

        y = r + discount min_i Q_i(s', a')

    With one critic (S = 1) that is the target of DDPG.
    """
    return torch.addcmul(reward, discount, next_q.amin(0))


def soft_target(reward: Tensor, discount: Tensor, next_q: Tensor, *, next_logprob: Tensor, temperature: Tensor) -> Tensor:
    """The target of SAC (Haarnoja et al. 2018, arXiv:1812.05905, eqs. 3 and 6). `[B], [B], [S, B], [B], [] -> [B]`

    y = r + discount (min_i Q_i(s', a') - temperature log pi(a' | s')),  a' ~ pi(. | s')
    """
    return torch.addcmul(reward, discount, next_q.amin(0) - temperature * next_logprob)


def soft_target_discrete(
    reward: Tensor, discount: Tensor, next_q: Tensor, *, next_logprobs: Tensor, temperature: Tensor
) -> Tensor:
    """The same with the expectation over actions written out (Christodoulou 2019, arXiv:1910.07207, eq. 10).

        y = r + discount sum_a pi(a | s') (min_i Q_i(s', a) - temperature log pi(a | s'))

    `[B], [B], [S, B, A], [B, A], [] -> [B]`. A forbidden action has probability 0 and a finite log-probability.
    """
    value = (next_logprobs.exp() * (next_q.amin(0) - temperature * next_logprobs)).sum(-1)
    return torch.addcmul(reward, discount, value)
