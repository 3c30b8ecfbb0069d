"""Credit for samples of a language model: along the tokens of each row, and among the rows of each prompt.

Rows are ragged: the tokens of all rows lie one after another, and `row` gives each token the number of its row. `group` gives
each row the number of its group (the samples of one prompt). Rows and groups may differ in size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.ops.returns import gae


# ---------------------------------------------------------------------------------------------------------- tokens of rows
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


# ---------------------------------------------------------------------------------------------------------- rows of groups
def group_sum(x: Tensor, group: Tensor) -> Tensor:
    """The sum of `x` over each row's group, at every row. `[R], [R] -> [R]`

    >>> group_sum(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 1])).tolist()
    [3.0, 3.0, 5.0]
    """
    if not len(group):  # `max` of no rows raises
        return x
    return torch.zeros(int(group.max()) + 1, dtype=x.dtype, device=x.device).index_add_(0, group, x)[group]


def group_mean(x: Tensor, group: Tensor) -> Tensor:
    """The mean of `x` over each row's group, at every row. `[R], [R] -> [R]`"""
    return group_sum(x, group) / group_sum(torch.ones_like(x), group)


def group_spread(x: Tensor, group: Tensor) -> Tensor:
    """The sample standard deviation of `x` in each row's group, at every row; 0 in a group of one. `[R], [R] -> [R]`"""
    size = group_sum(torch.ones_like(x), group)
    squares = group_sum((x - group_mean(x, group)) ** 2, group)
    return (squares / (size - 1.0).clamp(min=1.0)).sqrt()


def group_advantage(rewards: Tensor, group: Tensor, *, scale: bool, eps: float = 1e-6) -> Tensor:
    """Reward minus the group's mean, over its standard deviation if `scale`. `[R], [R] -> [R]`

    GRPO (Shao et al. 2024, arXiv:2402.03300) scales by the sample standard deviation; Dr. GRPO (Liu et al. 2025,
    arXiv:2503.20783) does not, because scaling raises the weight of very easy and very hard prompts. A group without spread
    gives zeros.

    >>> group_advantage(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4, dtype=torch.int64), scale=False).tolist()
    [0.5, -0.5, -0.5, 0.5]
    """
    spread = group_spread(rewards, group)
    centred = (rewards - group_mean(rewards, group)) * (spread > eps)
    return centred / (spread + eps) if scale else centred


def batch_spread(x: Tensor, collective: Collective) -> Tensor:
    """The sample standard deviation of `x` over all rows of all ranks; 0 of a single one. `[R] -> []`"""
    kept = x.double()
    total, count = collective.all_reduce(torch.stack([kept.sum(), torch.full_like(kept.sum(), len(kept))]))
    squares = collective.all_reduce(((kept - total / count.clamp(min=1.0)) ** 2).sum())
    spread: Tensor = (squares / (count - 1.0).clamp(min=1.0)).sqrt()
    return spread.to(x.dtype)


def relative_advantage(rewards: Tensor, group: Tensor, *, by: str, collective: Collective, eps: float = 1e-6) -> Tensor:
    """Reward minus the group's mean, over the deviation of the group, of the whole batch, or of nothing. `[R], [R] -> [R]`

    `by`: group (GRPO), batch (Liu et al. 2025, "Tricks or traps", arXiv:2508.08221: a prompt on which nearly all answers are
    alike is not blown up), none (Dr. GRPO). The deviation of the batch is that of the rewards themselves, over all ranks.

    >>> from runnel.core.contracts.learning import SingleProcess
    >>> rewards, group = torch.tensor([1.0, 0.0, 3.0, 0.0]), torch.tensor([0, 0, 1, 1])
    >>> found = relative_advantage(rewards, group, by="batch", collective=SingleProcess())
    >>> [round(x, 3) for x in found.tolist()]
    [0.354, -0.354, 1.061, -1.061]
    """
    if by != "batch":
        return group_advantage(rewards, group, scale=by == "group", eps=eps)
    return group_advantage(rewards, group, scale=False, eps=eps) / (batch_spread(rewards, collective) + eps)


def leave_one_out(rewards: Tensor, group: Tensor) -> Tensor:
    """Reward minus the mean of the others of its group: RLOO (Ahmadian et al. 2024, arXiv:2402.14740). `[R], [R] -> [R]`

    A row that is alone in its group gives 0: there is nothing to compare it with.

    >>> leave_one_out(torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3, dtype=torch.int64)).tolist()
    [1.0, -0.5, -0.5]
    """
    size = group_sum(torch.ones_like(rewards), group)
    others = (group_sum(rewards, group) - rewards) / (size - 1.0).clamp(min=1.0)
    return (rewards - others) * (size > 1)


def against_baseline_row(rewards: Tensor, group: Tensor, is_baseline: Tensor) -> Tensor:
    """Reward minus that of the group's baseline row, as ReMax does with a greedy one (Li et al. 2024, arXiv:2310.10505).

    `[R], [R], [R] bool -> [R]`. Each group has exactly one baseline row, which itself gets 0.

    >>> r, g = torch.tensor([0.5, 1.0, 0.0]), torch.zeros(3, dtype=torch.int64)
    >>> against_baseline_row(r, g, torch.tensor([True, False, False])).tolist()
    [0.0, 0.5, -0.5]
    """
    return rewards - group_sum(rewards * is_baseline, group)


def kept_of_group(rewards: Tensor, group: Tensor, how: str) -> Tensor:
    """Which rows of each group are kept: all, the best, or the best and the worst. `[R], [R] -> [R] bool`

    Of equal rows the first one is the best; a group in which all are equal has no worst.

    >>> kept_of_group(torch.tensor([0.0, 2.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 1, 1]), "best_worst").tolist()
    [True, True, False, True, False]
    """
    if how == "all":
        return torch.ones_like(group, dtype=torch.bool)
    kept = torch.zeros_like(group, dtype=torch.bool)
    for g in torch.unique(group).tolist():
        rows = (group == g).nonzero().squeeze(1)
        kept[rows[rewards[rows].argmax()]] = True
    if how == "best_worst":
        kept[best_and_worst(rewards, group)[1]] = True
    return kept


def compared_in_order(channels: Tensor, margins: Sequence[float]) -> Tensor:
    """Which of each two rows is better: 1 the first one, -1 the second, 0 neither. `[K, R] -> [R, R]`

    The first channel in which they differ by more than its margin decides: the decision tree of HERON (Bukharin et al. 2023,
    arXiv:2309.02632, sec. 3). A channel that is NaN for one of them says nothing.

    >>> rewards = torch.tensor([[1.0, 1.0, 0.0], [0.2, 0.9, 5.0]])  # right or wrong, then style
    >>> compared_in_order(rewards, [0.0, 0.5])[0].tolist()
    [0.0, -1.0, 1.0]
    """
    out = torch.zeros(channels.shape[1], channels.shape[1], dtype=channels.dtype, device=channels.device)
    for values, margin in zip(channels, margins, strict=True):
        gap = (values[:, None] - values[None, :]).nan_to_num(0.0)
        out = torch.where(out == 0, torch.sign(gap) * (gap.abs() > margin), out)
    return out


def best_and_worst(rewards: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """The rows with the highest and the lowest reward of each group that has two different ones. `[R], [R] -> [P], [P]`

    Of equal rows the first one is used.

    >>> best, worst = best_and_worst(torch.tensor([0.0, 2.0, 1.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 1, 1]))
    >>> best.tolist(), worst.tolist()
    ([1], [0])
    """
    best, worst = [], []
    for g in torch.unique(group).tolist():
        rows = (group == g).nonzero().squeeze(1)
        high, low = rows[rewards[rows].argmax()], rows[rewards[rows].argmin()]
        if rewards[high] > rewards[low]:
            best.append(high)
            worst.append(low)
    empty = group.new_zeros(0)
    return (torch.stack(best), torch.stack(worst)) if best else (empty, empty)
