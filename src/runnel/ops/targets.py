"""Targets of temporal-difference learning: the values that Q(s, a) is moved to.

There are targets of several critics, as distributions over a fixed support (for a cross-entropy loss), and over several steps,
cut where an episode or the data ends.

`discount` comes from replay (`data/replay.py`): gamma for one step, gamma^m for m steps, and 0 where the episode terminated.
A truncated episode keeps its discount, because it bootstraps from the observation at which it was cut.
"""

from __future__ import annotations

import math

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


def c51_target(probs: Tensor, reward: Tensor, discount: Tensor, *, support: Tensor) -> Tensor:
    """The projected distributional target of C51 (Bellemare et al. 2017, arXiv:1707.06887, alg. 1).

        y_i = clip(reward + discount z_i, z_0, z_{N-1}),  b_i = (y_i - z_0) / (z_1 - z_0)
        m_j = sum_i probs_i max(0, 1 - |b_i - j|)

    `[..., N], [...], [...], [N] -> [..., N]`: `probs` is the distribution at the state that is bootstrapped from; atom i moves
    to y_i, and its mass is shared between the two atoms beside it.
    """
    low, width, last = support[0], support[1] - support[0], support.shape[0] - 1
    place = ((reward.unsqueeze(-1) + discount.unsqueeze(-1) * support - low) / width).clamp(0.0, last)
    below = place.floor().clamp(max=last - 1)  # the last atom has none above it: it is reached from the one below
    upper = probs * (place - below)
    index = below.nan_to_num(0.0).long()  # NaN is no index; it stays in `upper`, so the loss still shows it
    target = torch.zeros_like(probs).scatter_add_(-1, index, probs - upper)
    return target.scatter_add_(-1, index + 1, upper)


def hl_gauss_target(value: Tensor, *, support: Tensor, sigma: float) -> Tensor:
    """A value as the histogram of a Gaussian around it (HL-Gauss: Imani & White 2018, arXiv:1806.04613; Farebrother et al.
    2024, arXiv:2403.03950, eq. 7). `[...], [N] -> [..., N]`

        p_i = (Phi((e_{i+1} - v) / s) - Phi((e_i - v) / s)) / (Phi((e_N - v) / s) - Phi((e_0 - v) / s))

    The atoms of `support` are the centres of N bins with the edges e; v is the value, held within the support; s is `sigma`
    times the width of a bin (0.75 in the paper).
    """
    width = support[1] - support[0]
    edges = torch.cat([support - 0.5 * width, support[-1:] + 0.5 * width])
    held = torch.minimum(torch.maximum(value, support[0]), support[-1])
    cdf = torch.erf((edges - held.unsqueeze(-1)) / (sigma * math.sqrt(2.0) * width))
    return cdf.diff(dim=-1) / (cdf[..., -1:] - cdf[..., :1])


def n_step_returns(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of up to `n` rewards (Sutton 1988; in Q-learning: Hessel et al. 2018, arXiv:1710.02298, eq. 4). All `[T, ...]`.

        m_t = min(n, steps from t to the end of its episode or of the data)
        R_t = sum_{k < m_t} gamma^k r_{t+k}
        d_t = gamma^{m_t}, or 0 if step t + m_t - 1 terminated

    Gives R, d, and `last` = t + m_t - 1 (int64): the target of step t is `R_t + d_t * V(state after step last_t)`. In a
    truncated episode that state is its final observation.
    """
    alive = gamma * (~terminated).to(rewards.dtype)
    time = torch.arange(len(rewards), device=rewards.device).reshape(-1, *[1] * (rewards.dim() - 1)).expand(rewards.shape)
    cut = (terminated | truncated)[:-1]
    total, discount, last = rewards, alive, time
    # after round k, entry t covers up to k + 1 steps: its own, and those that entry t + 1 covered before
    for _ in range(min(n, len(rewards)) - 1):
        total = torch.cat([torch.where(cut, rewards[:-1], rewards[:-1] + gamma * total[1:]), rewards[-1:]])
        discount = torch.cat([torch.where(cut, alive[:-1], gamma * discount[1:]), alive[-1:]])
        last = torch.cat([torch.where(cut, time[:-1], last[1:]), time[-1:]])
    return total, discount, last.contiguous()
