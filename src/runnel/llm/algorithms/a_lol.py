"""A-LoL: only samples that were better than expected are learned from, as one action each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import CLIP_METRICS, Part, PolicyConfig, TrajectoryAlgorithm
from runnel.losses.base import Loss
from runnel.losses.token import truncated_loss
from runnel.ops.credit import group_mean


@dataclass(frozen=True)
class ALoLConfig(PolicyConfig):
    """Advantage-leftover lunch."""

    on_resume: ClassVar[OnResume] = live("clip") | may_change("ratio")

    ratio: Literal["trajectory", "token"] = "trajectory"
    """Whose importance weight a token has: its trajectory's, or its own (the paper's A-LoL sequence)."""
    clip: float = bounded(0.9, at_least=0, below=1)
    """Importance weights are kept within 1 - clip and 1 + clip; with 0 they are 1 (the paper's A-LoL reference-free)."""


class ALoL(TrajectoryAlgorithm):
    """Advantage-leftover lunch RL (Baheti et al. 2024, A-LoL, arXiv:2305.14718, sec. 2), on rollouts.

        A_i = max(R_i - V(x_i), 0)
        L   = -1/R sum_i clip(pi(y_i) / mu(y_i), 1 - clip, 1 + clip) A_i log pi(y_i)           no gradient through the clip

    The paper learns from a given data set, with a value head on the reference policy as V. Here samples come from an earlier
    policy mu, and V is the mean reward of the prompt's group, which is what such a head estimates. Samples may be of any age.
    """

    config: ALoLConfig
    metrics = CLIP_METRICS

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return (rewards - group_mean(rewards, rows["group"])).clamp(min=0.0)

    def loss(self, part: Part, denominator: float) -> Loss:
        return truncated_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            max_ratio=1.0 + self.config.clip,
            min_ratio=1.0 - self.config.clip,
            row=part.unit if self.config.ratio == "trajectory" else None,
            num_rows=part.num_units,
            denominator=denominator,
            count=part.count,
        )
