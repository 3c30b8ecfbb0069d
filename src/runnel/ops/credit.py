"""Credit for groups: how good a sample was, compared with its siblings on the same prompt or task."""

from __future__ import annotations

from torch import Tensor


def group_advantage(rewards: Tensor, *, scale: bool, eps: float = 1e-6) -> Tensor:
    """Reward minus the group's mean, over its standard deviation if `scale`. `[G, n] -> [G, n]`

    GRPO (Shao et al. 2024, arXiv:2402.03300) scales by the sample standard deviation; Dr. GRPO (Liu et al. 2025,
    arXiv:2503.20783) does not, since that weighs easy and hard prompts up. A group without spread gives zeros.

    >>> import torch
    >>> group_advantage(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), scale=False).tolist()
    [[0.5, -0.5, -0.5, 0.5]]
    """
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    if not scale:
        return centred
    spread = rewards.std(dim=1, keepdim=True)
    return centred / (spread + eps) * (spread > eps)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Reward minus the mean of the other n - 1 of its group: RLOO (Ahmadian et al. 2024, arXiv:2402.14740). `[G, n] -> [G, n]`

    >>> import torch
    >>> leave_one_out(torch.tensor([[1.0, 0.0, 0.0]])).tolist()
    [[1.0, -0.5, -0.5]]
    """
    n = rewards.shape[1]
    others = (rewards.sum(dim=1, keepdim=True) - rewards) / (n - 1)
    return rewards - others
