"""PACS: the reward is a label, and the policy's own log-ratio is the score that predicts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import Aggregation, Component, Part, PolicyAlgorithm, PolicyConfig
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import score_label_loss


@dataclass(frozen=True)
class PACSConfig(PolicyConfig):
    """Implicit actor-critic coupling by supervised learning."""

    on_resume: ClassVar[OnResume] = live("beta")

    beta: float = bounded(1.0, above=0)
    """How much the score of a completion grows with its log-ratio."""

    def unused(self) -> dict[str, str]:
        return super().unused() | {"duration_power": "rewards are labels here, and weigh no tokens"}


class PACS(PolicyAlgorithm):
    """Implicit actor-critic coupling (Li et al. 2025, PACS, arXiv:2509.02522, sec. 3), with its leave-one-out score.

        s_i   = beta (log pi(y_i) - log mu(y_i))
        psi_i = s_i - mean_{j != i} s_j                                                                    within the group
        L     = -1/R sum_i (R_i log sigmoid(psi_i) + (1 - R_i) log sigmoid(-psi_i))

    Rewards must lie between 0 and 1 (the paper's are 0 or 1; between them they are soft labels). mu is the policy that sampled,
    of whatever version. A group is always trained on as a whole. The authors' code can also balance the labels of a prompt;
    that is left out.
    """

    config: PACSConfig
    aggregation: Aggregation = "sum"
    metrics = ("pacs/accuracy", "approx_kl")

    @property
    def components(self) -> Mapping[str, Component]:
        found = dict(super().components)
        # the score of a group in which all are right, or all wrong, is learned, too
        return found | {"policy": replace(found["policy"], by_advantage=False)}

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        if len(rewards) and not 0.0 <= float(rewards.min()) <= float(rewards.max()) <= 1.0:
            found = f"{float(rewards.min()):g} to {float(rewards.max()):g}"
            raise DataError(f"PACS reads rewards as labels between 0 and 1, and got {found}; scale the reward, or use grpo")
        return rewards

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        group, owner = rows["group"], token_owner(rows)
        # a score is compared with the others of its group, so the rows of a group stay together
        more = {"unit": group[rows["row_owner"]], "sequence": owner}
        return Batch(super().annotate(rows, collective) | more)

    def loss(self, part: Part, denominator: float) -> Loss:
        return score_label_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["advantage"],
            row=part.fields["sequence"],
            group=part.unit,
            weight=part.fields["weight"],
            beta=self.config.beta,
            denominator=denominator,
            count=part.count,
        )
