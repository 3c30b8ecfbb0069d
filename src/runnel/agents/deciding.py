"""Batches of rows that do not decide at every step (`core/trajectories.ACTIVE`): credit, and which rows are trained on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.trajectories import ACTIVE
from runnel.ops.decisions import decisions, gae_of_decisions
from runnel.ops.returns import standardise


class DecisionCredit(NamedTuple):
    """Advantages and returns of decisions, and `counts`: where there is one to train on. `[T, B]` each"""

    advantages: Tensor
    returns: Tensor
    counts: Tensor


def credit_of_decisions(
    data: Batch,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    *,
    gamma: float,
    lam: float,
    normalise: bool,
    collective: Collective,
) -> DecisionCredit:
    """Credit by `gae_of_decisions`; with `normalise`, advantages of mean 0 and standard deviation 1 over decisions alone."""
    found = decisions(rewards, next_values, data["terminated"], data["truncated"], data[ACTIVE])
    advantages, returns = gae_of_decisions(found, values, data[ACTIVE], gamma=gamma, lam=lam)
    if normalise:
        scaled = standardise(advantages[found.counts], collective)
        advantages = torch.zeros_like(advantages).masked_scatter(found.counts, scaled)
    return DecisionCredit(advantages, returns, found.counts)


def rows_that_count(counts: Tensor, *, at_least: int) -> Tensor:
    """The places of the rows that count in `counts` `[N]`, in their order. `-> [n] int64`

    Where there are fewer than `at_least`, rows that do not count fill up: every minibatch has a row, and every rank has as many
    minibatches. The batch says which those are (`ACTIVE`), and losses leave them out.
    """
    first = torch.argsort(counts.to(torch.uint8), descending=True, stable=True)
    return first[: max(int(counts.sum()), at_least)]


def refuse_idle_rows(data: Batch, learner: object) -> None:
    """Refuse segments with rows that do not decide at every step, for a learner that would train on all of them."""
    if ACTIVE in data:
        fix = "it would train on rows in which nobody decides; PPOLearner knows which rows count"
        raise ConfigError("learner", type(learner).__name__, fix)
