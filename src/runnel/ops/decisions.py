"""Credit for rows that do not decide at every step: agents that leave early, and agents that wait for their turn.

One rule serves both. The steps from one decision of a row to its next one, or to the end of its episode, are one longer step:
its reward is the sum of what was paid meanwhile, and what follows is the state at the next decision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runnel.ops.returns import discounted_suffix_sum


class Decisions(NamedTuple):
    """What came of each decision, all `[T, B]`; entries without a decision mean nothing.

    `counts` says where there is a decision whose outcome is in the segment. A row that still waits when the segment ends has a
    last decision without one: it is not trained on, and the decision before it bootstraps from its value.
    """

    rewards: Tensor
    next_values: Tensor
    terminated: Tensor
    truncated: Tensor
    counts: Tensor


def decisions(rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, active: Tensor) -> Decisions:
    """Fold the idle steps behind each decision into it. All `[T, B]`, `active` `[T + 1, B]` bool.

        open_t = not ended_t and not active_{t+1}       (what follows step t still belongs to the same decision)
        x_t    = x_t + open_t * x_{t+1}                 for rewards and flags
        v_t    = next_values_t where not open_t, else v_{t+1}

    Nothing behind an end counts until the row decides again, so what a dead row holds changes nothing.
    """
    ended = terminated | truncated
    # not open: the decision's outcome is known here, an end or the state of the next decision
    known = ended | active[1:]
    columns = [rewards, torch.where(known, next_values, 0.0), terminated, truncated]
    folded = torch.stack([x.to(rewards.dtype) for x in columns], dim=-1)  # one pass serves all four
    folded = discounted_suffix_sum(folded, (~known).to(rewards.dtype).unsqueeze(-1))
    paid, following, over, cut = folded.unbind(-1)
    return Decisions(paid, following, over > 0.0, cut > 0.0, with_outcome(ended, active))


def with_outcome(ended: Tensor, active: Tensor) -> Tensor:
    """Where there is a decision whose outcome is in the segment. `[T, B] bool, [T + 1, B] bool -> [T, B] bool`"""
    known = (ended | active[1:]).to(torch.float32)
    return active[:-1] & (discounted_suffix_sum(known, 1.0 - known) > 0.0)


def gae_of_decisions(found: Decisions, values: Tensor, active: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """`gae` from decision to decision. `values` `[T, B]`, `active` `[T + 1, B]`; gives advantages and returns, `[T, B]` twice.

        delta_t = r_t + gamma * (1 - terminated_t) * next_values_t - values_t
        A_t     = delta_t + gamma * lam * (1 - ended_t) * A_{t+1}     where row t decides
        A_t     = A_{t+1}                                             where it does not
        R_t     = A_t + values_t

    `values` of idle entries may be anything, also NaN. With every row active at every step this is `gae`.
    """
    decides = active[:-1]
    alive = (~found.terminated).to(values.dtype)
    delta = found.rewards + gamma * alive * found.next_values - values
    decay = (gamma * lam) * alive.masked_fill(found.truncated, 0.0)
    # an open decision at the end of the segment stands for its value alone: nothing is known behind it
    delta = torch.where(found.counts, delta, 0.0)
    decay = torch.where(found.counts, decay, torch.where(decides, 0.0, 1.0))
    advantages = discounted_suffix_sum(delta, decay)
    return advantages, torch.where(found.counts, advantages + values, 0.0)


def step_of_outcome(ended: Tensor, active: Tensor) -> Tensor:
    """The step behind which the outcome of a row's decision is known: the first from each step on behind which the row decides
    again, or its episode is over; T where the segment ends before. `[T, B] bool, [T + 1, B] bool -> [T, B] int64`

    >>> step_of_outcome(torch.tensor([[False], [False], [True]]), torch.tensor([[True], [False], [True], [True]])).T.tolist()
    [[1, 1, 2]]
    """
    num_steps = len(ended)
    steps = torch.arange(num_steps, device=ended.device).unsqueeze(1)
    known = torch.where(ended | active[1:], steps, num_steps)
    return known.flip(0).cummin(0).values.flip(0)
