"""GRPO, and Dr. GRPO: group-relative policy optimisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.llm.algorithms.base import CLIP_METRICS, Aggregation, ClipConfig, Part, PolicyAlgorithm, clipped_loss
from runnel.losses.base import Loss
from runnel.ops.credit import group_advantage


@dataclass(frozen=True)
class GRPOConfig(ClipConfig):
    """Group-relative policy optimisation."""


class GRPO(PolicyAlgorithm):
    """Each completion against the others of its prompt (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3 and 4).

        A_i = (R_i - mean(R)) / std(R)                                                          within the group
        L   = -1/R sum_i 1/|y_i| sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)  + kl_coef KL

    A group in which every completion got the same reward says nothing (`groups_zero_signal`); it still counts in the mean.
    """

    config: GRPOConfig
    aggregation: Aggregation = "sequence"
    metrics = CLIP_METRICS

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return group_advantage(rewards, rows["group"], scale=True)

    def loss(self, part: Part, denominator: float) -> Loss:
        return clipped_loss(part, denominator, self.config)


class DrGRPO(GRPO):
    """GRPO without its biases towards long wrong answers and easy prompts (Liu et al. 2025, arXiv:2503.20783, sec. 3.2).

    A_i = R_i - mean(R)
    L   = -1/(R max_tokens) sum_i sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)  + kl_coef KL
    """

    aggregation: Aggregation = "constant"

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return group_advantage(rewards, rows["group"], scale=False)
