"""AIPO: truncated importance weights, for rollouts of older versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import CLIP_METRICS, Part, PolicyAlgorithm, PolicyConfig
from runnel.losses.base import Loss
from runnel.losses.token import truncated_loss
from runnel.ops.credit import leave_one_out


@dataclass(frozen=True)
class AIPOConfig(PolicyConfig):
    """Asynchronous importance weighted policy optimisation."""

    on_resume: ClassVar[OnResume] = live("max_ratio")

    max_ratio: float = bounded(4.0, at_least=1, note="below 1 it would cut fresh tokens too")
    """Importance weights are cut here; 2 to 10 is usual."""


class AIPO(PolicyAlgorithm):
    """Policy gradient with one-sided truncation (LlamaRL, Wu et al. 2025, arXiv:2505.24034, sec. 4).

        L = -1/N sum_it min(pi(y_it) / mu(y_it), max_ratio) A_i log pi(y_it)            no gradient through the minimum

    A_i is the leave-one-out advantage. There is no lower bound and no trust region; on fresh rollouts it is RLOO's gradient,
    as a mean over tokens.
    """

    config: AIPOConfig
    metrics = CLIP_METRICS

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return leave_one_out(rewards, rows["group"])

    def loss(self, part: Part, denominator: float) -> Loss:
        return truncated_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            max_ratio=self.config.max_ratio,
            denominator=denominator,
            count=part.count,
        )
