"""Credit over the turns of conversations: returns, advantages, groups of turns in one state, and weights by duration.

Turns are ragged as tokens are (`ops/credit.py`): those of all trajectories lie one after another, each trajectory's in the
order of time, and `owner` gives each turn the number of its trajectory.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import DataError
from runnel.ops.credit import group_sum, token_gae


def turn_index(start: Tensor, end: Tensor, num_tokens: int) -> Tensor:
    """The turn of each token, -1 outside of all; a turn is its tokens from `start` to before `end`. `[U], [U] -> [N]`

    >>> turn_index(torch.tensor([1, 4]), torch.tensor([3, 5]), 6).tolist()
    [-1, 0, 0, -1, 1, -1]
    """
    length = end - start
    turn = torch.repeat_interleave(torch.arange(len(start)), length)
    within = torch.arange(len(turn)) - torch.repeat_interleave(length.cumsum(0) - length, length)
    out = torch.full((num_tokens,), -1)
    out[start[turn] + within] = turn
    return out


def spread_turns(x: Tensor, turn: Tensor) -> Tensor:
    """What each turn has, at all of its tokens; 0 at tokens outside of turns. `[U], [N] -> [N]`

    >>> spread_turns(torch.tensor([2.0, 3.0]), torch.tensor([-1, 0, 0, 1])).tolist()
    [0.0, 2.0, 2.0, 3.0]
    """
    out = torch.zeros(len(turn), dtype=x.dtype)
    out[turn >= 0] = x[turn[turn >= 0]]
    return out


def turn_sum(x: Tensor, turn: Tensor, num_turns: int) -> Tensor:
    """The sum of `x` over the tokens of each turn. `[N], [N] -> [U]`

    >>> turn_sum(torch.tensor([9.0, 1.0, 2.0, 4.0]), torch.tensor([-1, 0, 0, 1]), 2).tolist()
    [3.0, 4.0]
    """
    inside = turn >= 0
    return torch.zeros(num_turns, dtype=x.dtype).index_add(0, turn[inside], x[inside])


def turn_gae(
    reward: Tensor, value: Tensor, owner: Tensor, *, num_trajectories: int, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalised advantages of turns, and the returns that a critic learns: `token_gae`, where a step is a turn.
    `[U], [U], [U] -> [U], [U]`

        delta_u = r_u + gamma V_{u+1} - V_u,   A_u = delta_u + gamma lam A_{u+1},   R_u = A_u + V_u

    The last turn of a trajectory ends it, even if a limit cut it: no value of what would have followed is known.

    >>> r, v, o = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([0.5, 0.5, 1.0]), torch.tensor([0, 0, 1])
    >>> [x.tolist() for x in turn_gae(r, v, o, num_trajectories=2, gamma=0.5, lam=1.0)]
    [[0.0, 0.5, 3.0], [0.5, 1.0, 4.0]]
    """
    every = torch.ones_like(owner, dtype=torch.bool)
    return token_gae(reward, value, every, owner, num_rows=num_trajectories, gamma=gamma, lam=lam)


def turn_returns(reward: Tensor, owner: Tensor, *, num_trajectories: int, gamma: float) -> Tensor:
    """What follows from each turn on: `R_u = r_u + gamma R_{u+1}`. `[U], [U] -> [U]`

    >>> turn_returns(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 0, 1]), num_trajectories=2, gamma=0.5).tolist()
    [2.0, 2.0, 4.0]
    """
    nothing = torch.zeros_like(reward)
    return turn_gae(reward, nothing, owner, num_trajectories=num_trajectories, gamma=gamma, lam=1.0)[0]


def step_groups(key: Tensor, group: Tensor) -> Tensor:
    """Numbers of the step groups: turns of one group that have one key, in whichever trajectory and at whatever time.
    `[U], [U] -> [U]`

    >>> step_groups(torch.tensor([7, 8, 7, 7]), torch.tensor([0, 0, 0, 1])).tolist()
    [0, 1, 0, 2]
    """
    found: Tensor = torch.unique(torch.stack([group, key], dim=1), dim=0, return_inverse=True)[1]
    return found


def step_group_size(step_group: Tensor) -> Tensor:
    """How many turns each turn is compared with, itself among them. `[U] -> [U]`"""
    return group_sum(torch.ones(len(step_group)), step_group)


def duration_weights(duration_s: Tensor, *, power: float, collective: Collective) -> Tensor:
    """Weights of turns that grow with the time that they took: `w_u = d_u^power / mean(d^power)`, over the turns of all ranks.
    `[U] -> [U]`
    """
    raised = duration_s.double().clamp(min=0.0) ** power
    total, count = collective.all_reduce(torch.stack([raised.sum(), torch.tensor(float(len(raised)), dtype=torch.float64)]))
    if not float(total) > 0:
        raise DataError("the durations of all turns are 0, and cannot weigh them; leave duration_power at 0")
    weight: Tensor = (raised * count / total).float()
    return weight
