"""Batches of rows that do not decide at every step (`core/trajectories.ACTIVE`): which of them are trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.trajectories import ACTIVE


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
