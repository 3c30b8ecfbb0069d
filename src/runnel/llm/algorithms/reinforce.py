"""REINFORCE, RLOO and ReMax: the plain policy gradient of whole completions, each with its own baseline."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.llm.algorithms.base import Aggregation, Part, PolicyAlgorithm, PolicyConfig
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import reinforce_loss
from runnel.ops.credit import against_baseline_row, group_sum, leave_one_out, row_sum


@dataclass(frozen=True)
class ReinforceConfig(PolicyConfig):
    """The plain policy gradient: one update a batch, on fresh rollouts."""


class Reinforce(PolicyAlgorithm):
    """REINFORCE with the batch's mean reward as baseline (Williams 1992, doi:10.1007/BF00992696).

    L = -1/R sum_i (R_i - mean(R)) sum_t log pi(y_it)
    """

    aggregation: Aggregation = "sum"
    fresh_only = True

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        total = collective.all_reduce(torch.stack([rewards.sum(), torch.tensor(float(len(rewards)))]))
        return rewards - total[0] / total[1]

    def loss(self, part: Part, denominator: float) -> Loss:
        fields = part.fields
        return reinforce_loss(part.outputs["logprob"], fields["advantage"], weight=fields["weight"], denominator=denominator)


class RLOO(Reinforce):
    """REINFORCE, leave one out: the baseline is the mean of the prompt's other completions (Ahmadian et al. 2024,
    arXiv:2402.14740, eq. 8).

        L = -1/R sum_i (R_i - mean_{j != i}(R_j)) sum_t log pi(y_it)
    """

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return leave_one_out(rewards, rows["group"])


class ReMax(Reinforce):
    """The baseline is the reward of the prompt's greedy completion (Li et al. 2024, arXiv:2310.10505, eq. 5).

        L = -1/R sum_i (R_i - R_greedy) sum_t log pi(y_it)

    The sampler makes the first row of each group greedily and masks its tokens: that row is not trained.
    """

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        tokens = row_sum(rows["loss_mask"].float(), token_owner(rows), len(rewards))
        baseline = tokens == 0
        if not bool((group_sum(baseline.float(), rows["group"]) == 1).all()):
            raise DataError("ReMax needs one greedy row in each group, with none of its tokens in loss_mask")
        return against_baseline_row(rewards, rows["group"], baseline)
