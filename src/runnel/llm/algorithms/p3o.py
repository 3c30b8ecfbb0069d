"""P3O: PPO on pairs of completions of one prompt, which learns from differences of rewards alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import CLIP_METRICS, Aggregation, Part, PolicyAlgorithm, PolicyConfig
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import pairwise_policy_loss
from runnel.ops.credit import leave_one_out


@dataclass(frozen=True)
class P3OConfig(PolicyConfig):
    """Pairwise proximal policy optimisation."""

    on_resume: ClassVar[OnResume] = live("clip", "max_ratio")

    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL counts: as a loss component (the k3 estimator), or subtracted from the reward."""
    clip: float | None = bounded(0.2, above=0)
    """A pair stops counting once the log-ratio of its completions has moved so far in the direction of their rewards; None:
    nowhere."""
    max_ratio: float = bounded(5.0, at_least=1, note="below 1 it would cut fresh pairs too")
    """The importance weight of a pair is cut here."""

    def unused(self) -> dict[str, str]:
        return super().unused() | {"duration_power": "pairs of whole completions are compared, and no turns"}


class P3O(PolicyAlgorithm):
    """Pairwise proximal policy optimisation (Wu et al. 2023, P3O, arXiv:2310.00212), over all pairs of a group.

        d_i  = log pi(y_i) - log mu(y_i),   d_ij = d_i - d_j,   A_ij = (R_i - R_j) / 2
        w_ij = min(exp(d_i + d_j), max_ratio)                                             no gradient through the weight
        L    = -mean_{i<j} w_ij min(A_ij d_ij, A_ij clip(d_ij, -clip, clip))              within each group; mean over groups

    A number that is added to all rewards of a prompt changes nothing. With groups of two and on fresh samples the gradient is
    the paper's, (R_1 - R_2) grad(log pi(y_1) - log pi(y_2)) / 2; with larger groups it is the mean over their pairs, and that
    is RLOO's. Of the paper, this gradient and its importance weight, the product of both ratios, are followed. It bounds
    weight and gradient, for each completion (its V1) or for the pair (V2): here it is the pair, and as the equation of that
    clip could not be read, its form and both bounds are ours. The paper has its KL in the reward.
    """

    config: P3OConfig
    aggregation: Aggregation = "sum"
    metrics = CLIP_METRICS

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        # the sum of a completion's halves over its pairs, up to a factor: 0 where a group says nothing
        return leave_one_out(rewards, rows["group"])

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        owner = token_owner(rows)
        # pairs are of one group, so the rows of a group stay together
        more = {"unit": rows["group"][rows["row_owner"]], "sequence": owner, "reward": rewards[owner]}
        return Batch(super().token_credit(rewards, rows, collective) | more)

    def loss(self, part: Part, denominator: float) -> Loss:
        return pairwise_policy_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["reward"],
            row=part.fields["sequence"],
            group=part.unit,
            clip=self.config.clip,
            max_ratio=self.config.max_ratio,
            denominator=denominator,
            count=part.count,
        )
