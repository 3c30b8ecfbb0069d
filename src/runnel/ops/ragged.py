"""Maths on ragged rows: the tokens of all rows lie one after another, and `row` has the row of each token."""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.ops.returns import gae


def row_index(row_length: Tensor) -> Tensor:
    """The row of every token. `[R] -> [N]`

    >>> row_index(torch.tensor([2, 0, 1])).tolist()
    [0, 0, 2]
    """
    return torch.repeat_interleave(torch.arange(len(row_length), device=row_length.device), row_length)


def row_sum(x: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """The sum of `x` over each row. `[N], [N] -> [R]`

    >>> row_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 2]), 3).tolist()
    [3.0, 0.0, 4.0]
    """
    return torch.zeros(num_rows, dtype=x.dtype, device=x.device).index_add(0, row, x)


def last_of_row(mask: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """The position of each row's last token where `mask` holds; -1 for a row without one. `[N], [N] -> [R]`

    >>> last_of_row(torch.tensor([True, True, False, False]), torch.tensor([0, 0, 0, 1]), 2).tolist()
    [1, -1]
    """
    places = torch.where(mask, torch.arange(len(mask), device=mask.device), -1)
    return torch.full((num_rows,), -1, device=mask.device).scatter_reduce(0, row, places, "amax")


def token_gae(
    reward: Tensor, value: Tensor, mask: Tensor, row: Tensor, *, num_rows: int, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantages of the tokens where `mask` holds, and the returns that a critic learns. `[N] x 4 -> [N], [N]`

        delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lam A_{t+1},   R_t = A_t + V_t

    along the masked tokens of each row (GAE, Schulman et al. 2016, arXiv:1506.02438). `value[t]` is of the state before token
    t. The last masked token of a row ends the episode, even if a limit on the length cut it: that limit is part of the task.
    """
    places = mask.nonzero().squeeze(1)
    owner = row[places]
    count = torch.bincount(owner, minlength=num_rows)
    step = torch.arange(len(places), device=mask.device) - (count.cumsum(0) - count)[owner]
    advantage = torch.zeros_like(value)
    if len(places):
        # one column a row: a row that ends earlier is followed by zeros, so it needs no flag of its end
        grid = [torch.zeros((int(count.max()), num_rows), dtype=value.dtype, device=mask.device) for _ in range(2)]
        for full, flat in zip(grid, (reward, value), strict=True):
            full[step, owner] = flat[places]
        rewards, values = grid
        following = torch.cat([values[1:], torch.zeros_like(values[:1])])
        never = torch.zeros_like(values, dtype=torch.bool)
        found, _ = gae(rewards, values, following, never, never, gamma=gamma, lam=lam)
        advantage[places] = found[step, owner]
    return advantage, (advantage + value) * mask


def send(x: Tensor, device: str | torch.device) -> Tensor:
    """Copy a CPU tensor to `device` without waiting for earlier work of the device."""
    # only a copy from pinned memory is asynchronous
    return x.pin_memory().to(device, non_blocking=True) if torch.device(device).type == "cuda" else x.to(device)
