"""GSPO: the ratio and its clip belong to the whole sequence."""

from __future__ import annotations

from dataclasses import dataclass

from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.llm.algorithms.base import Part
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.losses.base import Loss
from runnel.losses.token import sequence_policy_loss


@dataclass(frozen=True)
class GSPOConfig(GRPOConfig):
    """Group sequence policy optimisation."""

    clip_low: float | None = 3e-4
    """The sequence's ratio stops counting below 1 - clip_low; it is a geometric mean, so it stays much closer to 1."""
    clip_high: float | None = 4e-4
    """The sequence's ratio stops counting above 1 + clip_high."""


class GSPO(GRPO):
    """Group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071, eq. 5 to 7); clip range of its section 5.1.

    s_i = exp(1/|y_i| sum_t log(pi(y_it) / pi_old(y_it)))
    L   = -1/R sum_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i)                        A_i as in GRPO
    """

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        # the ratio is that of the whole trajectory, so its rows stay together
        return Batch(super().annotate(rows, collective) | {"unit": rows["row_owner"]})

    def loss(self, part: Part, denominator: float) -> Loss:
        return sequence_policy_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["advantage"],
            # where each trajectory is one row, both number the same; only the order of a sum differs
            row=part.row if part.num_rows == part.num_units else part.unit,
            num_rows=part.num_units,
            weight=part.fields["weight"],
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            dual_clip=self.config.dual_clip,
            denominator=denominator,
            count=part.count,
        )
