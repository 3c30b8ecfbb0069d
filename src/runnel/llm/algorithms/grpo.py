"""GRPO: group-relative policy optimisation, with the choices that its relatives make differently as settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import ClipConfig, ClippedAlgorithm, Part, PolicyConfig, clipped_loss
from runnel.losses.base import Loss
from runnel.ops.credit import relative_advantage


@dataclass(frozen=True)
class GroupConfig(PolicyConfig):
    """Settings of algorithms that compare the completions of a prompt."""

    on_resume: ClassVar[OnResume] = may_change("normalise", "aggregation")

    normalise: Literal["group", "batch", "none"] = "group"
    """What a reward minus the mean of its group is divided by: the deviation of the group, that of all rewards of the batch, or
    nothing."""
    aggregation: Literal["sequence", "token", "constant"] = "sequence"
    """The mean of the loss: over the means of completions (sequence), over all tokens (token), or their sum over completions
    times max_tokens (constant)."""


@dataclass(frozen=True)
class GRPOConfig(GroupConfig, ClipConfig):
    """Group-relative policy optimisation."""

    on_resume: ClassVar[OnResume] = live("dual_clip")

    dual_clip: float | None = bounded(None, above=1)
    """With a negative advantage the policy ratio stops counting above this, too (3 is usual); None: nowhere."""


class GRPO(ClippedAlgorithm):
    """Each completion against the others of its prompt (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3 and 4).

        A_i = (R_i - mean(R)) / std(R)                                                          within the group
        L   = -1/R sum_i 1/|y_i| sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)  + kl_coef KL

    A group in which every completion got the same reward says nothing (`groups_zero_signal`); it still counts in the mean.

    The settings are those whose effects "Tricks or traps" compares (Liu et al. 2025, arXiv:2508.08221). `normalise` "none" and
    `aggregation` "constant" are Dr. GRPO (Liu et al. 2025, arXiv:2503.20783, sec. 3.2; recipe `dr_grpo`):

        A_i = R_i - mean(R)
        L   = -1/(R max_tokens) sum_i sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)  + kl_coef KL

    `normalise` "batch" and `aggregation` "token" are what that paper ends with (Lite PPO).
    """

    config: GRPOConfig

    def __init__(self, config: GRPOConfig, *, channels: Mapping[str, float], max_tokens: int = 0) -> None:
        super().__init__(config, channels=channels, max_tokens=max_tokens)
        self.aggregation = config.aggregation

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return relative_advantage(rewards, rows["group"], by=self.config.normalise, collective=collective)

    def loss(self, part: Part, denominator: float) -> Loss:
        return clipped_loss(part, denominator, self.config, dual_clip=self.config.dual_clip)
