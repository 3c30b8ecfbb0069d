"""What of a state and an action moves a reward: shares of causes, who is needed, rows in which the rest is of another row."""

from __future__ import annotations

import torch
from torch import Tensor


def cause_shares(causes: Tensor, effects: Tensor) -> Tensor:
    """How much of each effect comes from each cause. `[N, D], [N, E] -> [E, D]` (float64)

        effect = sum_j (b_j z_j + c_j q_j) + rest,   z_j = standardised cause, q_j = standardised z_j^2
        share_j = sd(b_j z_j + c_j q_j) / sd(effect)

    Causes come before effects in time, so an order that is consistent with the graph is known. With one, LiNGAM (Shimizu et al.
    2011, DirectLiNGAM) has left a regression of each effect on all that is before it; of a linear effect the share is the
    standardised coefficient of that, without its sign. The squares find what is the same to both sides, such as a distance from
    0. Products of two causes are not found where each has mean 0. A column that never changes has no share.

    >>> x = torch.tensor([[-2.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [2.0, 1.0]])
    >>> cause_shares(x, 3.0 * x[:, :1]).round(decimals=3).tolist()
    [[1.0, 0.0]]
    """
    z = _standardise(causes.double())
    x, y = torch.cat([z, _standardise(z.square())], 1), _standardise(effects.double())
    moments = x.T @ x / len(x)
    # the ridge leaves a column without variance a coefficient of 0, and shares out what equal columns explain
    weight: Tensor = torch.linalg.solve(
        moments + 1e-6 * torch.eye(len(moments), dtype=x.dtype, device=x.device), x.T @ y / len(x)
    )
    linear, square = weight.T.chunk(2, dim=-1)
    both = moments.diagonal(offset=z.shape[1])
    return (linear.square() + square.square() + 2.0 * linear * square * both).clamp(min=0.0).sqrt()


def _standardise(x: Tensor) -> Tensor:
    """Columns of mean 0 and variance 1; 0 where a column does not change."""
    centred = x - x.mean(0)
    sd = centred.square().mean(0).sqrt()
    return torch.where(sd > 1e-7 * x.abs().amax(0), centred / sd.clamp(min=1e-300), 0.0)


def find_needed(shares: Tensor, *, num_roots: int, threshold: float) -> tuple[Tensor, Tensor]:
    """The dimensions of the state that lead to a root, and how much each action has to do with it. `[R + S, S + A] -> [S], [A]`

        strong_ej = share_ej >= threshold max_j share_ej  and  share_ej > 0
        needed    = the least set with:  j is needed if strong_ej for a root e, or for the change e of a needed dimension
        action_i  = max share_ei over roots and changes of needed dimensions for which i is strong

    Rows of `shares` are effects: R roots (the reward, the end of an episode), then the change of each of S dimensions of the
    state. Columns are causes: the S dimensions, then A actions. Without the changes, a speed would count for nothing where only
    the place is rewarded.

    >>> moves = torch.tensor([[0.9, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.3, 0.0]])
    >>> find_needed(moves, num_roots=1, threshold=0.1)  # place, speed, noise | action
    (tensor([ True,  True, False]), tensor([0.5000]))
    """
    strong = (shares >= threshold * shares.amax(1, keepdim=True)) & (shares > 0.0)
    num = len(shares) - num_roots
    needed = strong[:num_roots, :num].any(0)
    for _ in range(num):
        more = needed | strong[num_roots:, :num][needed].any(0)
        if torch.equal(more, needed):
            break
        needed = more
    rows = torch.cat([needed.new_ones(num_roots), needed])
    return needed, torch.where(strong & rows.unsqueeze(1), shares, 0.0)[:, num:].amax(0)


def exchange(x: Tensor, *, order: Tensor, take: Tensor) -> Tensor:
    """Rows whose dimensions `take` are those of the rows `order`. `[B, S], [B], [B, S] bool -> [B, S]`

    x'_bj = x_order(b)j if take_bj else x_bj
    """
    return torch.where(take, x[order], x)
