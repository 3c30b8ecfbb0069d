"""LOOP: leave-one-out credit for trajectories, with PPO's clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change
from runnel.llm.algorithms.base import CLIP_METRICS, Aggregation, ClipConfig, Part, PolicyAlgorithm, clipped_loss
from runnel.llm.algorithms.turns import Turns
from runnel.losses.base import Loss
from runnel.losses.token import sequence_policy_loss
from runnel.ops.credit import leave_one_out


@dataclass(frozen=True)
class LOOPConfig(ClipConfig):
    """Leave-one-out proximal policy optimisation."""

    on_resume: ClassVar[OnResume] = may_change("ratio")

    ratio: Literal["token", "turn", "trajectory"] = "token"
    """Whose probability the importance ratio and its clip are of: a token's, a turn's or a whole trajectory's."""


class LOOP(PolicyAlgorithm):
    """Leave-one-out PPO (Chen et al. 2025, arXiv:2502.01600): no critic, no reference, and one copy of the weights.

        A_i = R_i - mean_{j != i}(R_j)                                                                    within the group
        L   = -1/B sum_i 1/|y_i| sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)

    r_it is the ratio of token t; with `ratio` "turn" or "trajectory" that of the product of all tokens of its turn, or of its
    trajectory, so that these are clipped as one action. The paper has all three, and found tokens best. A turn weighs as its
    tokens do. On fresh rollouts, with one step a batch, the gradient is the same for all, and RLOO's with a mean by token.
    """

    config: LOOPConfig
    aggregation: Aggregation = "sequence"
    metrics = CLIP_METRICS

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return leave_one_out(rewards, rows["group"])

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        out = super().annotate(rows, collective)
        if self.config.ratio == "turn":
            out["turn"] = Turns.of(rows).token
        elif self.config.ratio == "trajectory":
            # a product over all rows of a trajectory: they stay together
            out["unit"] = rows["row_owner"]
        return out

    def loss(self, part: Part, denominator: float) -> Loss:
        if self.config.ratio == "token":
            return clipped_loss(part, denominator, self.config)
        action, num = part.unit, part.num_units
        if self.config.ratio == "turn":
            found, action = torch.unique(part.fields["turn"], return_inverse=True)
            num = len(found)
        return sequence_policy_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["advantage"],
            row=action,
            num_rows=num,
            weight=part.fields["weight"],
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            denominator=denominator,
            count=part.count,
            mean=False,
        )
