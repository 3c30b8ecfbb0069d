"""CISPO: what is clipped is the weight of a token's gradient, so that no token loses its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from runnel.core.bounds import bounded
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import CLIP_METRICS, Part
from runnel.llm.algorithms.grpo import GroupAlgorithm, GroupConfig
from runnel.losses.base import Loss
from runnel.losses.token import truncated_loss


@dataclass(frozen=True)
class CISPOConfig(GroupConfig):
    """Clipped importance sampling policy optimisation."""

    on_resume: ClassVar[OnResume] = live("max_ratio", "min_ratio")

    aggregation: Literal["sequence", "token", "constant"] = "token"
    """The mean of the loss: over all tokens (token), over the means of completions (sequence), or their sum over completions
    times max_tokens (constant)."""
    max_ratio: float = bounded(5.0, at_least=1, note="below 1 it would cut fresh tokens too")
    """Importance weights are cut here."""
    min_ratio: float = bounded(0.0, at_least=0, at_most=1)
    """Importance weights are raised to this; 0: none is."""


class CISPO(GroupAlgorithm):
    """Clipped importance sampling policy optimisation (MiniMax-M1, MiniMax 2025, arXiv:2506.13585, eq. 4 and 5).

        A_i = (R_i - mean(R)) / std(R)                                                          within the group
        L   = -1/N sum_it clip(pi(y_it) / mu(y_it), min_ratio, max_ratio) A_i log pi(y_it)      no gradient through the clip

    N tokens are in the batch. The paper has no lower bound, and does not say its upper one; 5 is that of ScaleRL (Khatri et al.
    2025, arXiv:2510.13786). AIPO is the same with leave-one-out advantages.
    """

    config: CISPOConfig
    metrics = CLIP_METRICS

    def loss(self, part: Part, denominator: float) -> Loss:
        return truncated_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            max_ratio=self.config.max_ratio,
            min_ratio=self.config.min_ratio,
            denominator=denominator,
            count=part.count,
        )
