"""Returns of several steps, cut where an episode or the data ends."""

from __future__ import annotations

import torch
from torch import Tensor


def n_step_returns(
    rewards: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, n: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of up to `n` rewards (Sutton 1988; in Q-learning: Hessel et al. 2018, arXiv:1710.02298, eq. 4). All `[T, ...]`.

        m_t = min(n, steps from t to the end of its episode or of the data)
        R_t = sum_{k < m_t} gamma^k r_{t+k}
        d_t = gamma^{m_t}, or 0 if step t + m_t - 1 terminated

    Gives R, d, and `last` = t + m_t - 1 (int64): the target of step t is `R_t + d_t * V(what followed step last_t)`. For
    a truncated episode that is its final observation.
    """
    alive = gamma * (~terminated).to(rewards.dtype)
    time = torch.arange(len(rewards), device=rewards.device).reshape(-1, *[1] * (rewards.dim() - 1)).expand(rewards.shape)
    cut = (terminated | truncated)[:-1]
    total, discount, last = rewards, alive, time
    for _ in range(min(n, len(rewards)) - 1):
        total = torch.cat([torch.where(cut, rewards[:-1], rewards[:-1] + gamma * total[1:]), rewards[-1:]])
        discount = torch.cat([torch.where(cut, alive[:-1], gamma * discount[1:]), alive[-1:]])
        last = torch.cat([torch.where(cut, time[:-1], last[1:]), time[-1:]])
    return total, discount, last.contiguous()
