"""RL-PLUS: GRPO with the demonstrated answer as one more member of each group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import EXTERNAL, Component, Part
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.learning.batches import external
from runnel.losses.base import Loss
from runnel.losses.token import external_loss


@dataclass(frozen=True)
class RLPlusConfig(GRPOConfig):
    """GRPO with demonstrations in its groups."""

    on_resume: ClassVar[OnResume] = live("focus")

    focus: float = bounded(1.0, at_least=0)
    """How much more the unlikely tokens of a demonstration count than the likely ones; 0: all alike."""


class RLPlus(GRPO):
    """Hybrid-policy optimisation (Dong et al. 2025, RL-PLUS, arXiv:2508.00222, sec. 3).

        A_i = (R_i - mean(R)) / std(R)                                 within the group, the demonstration being one of it
        L   = GRPO's on what the policy sampled
              - sum_t r_t A (1 - pi(y_t))^focus     on the demonstration;  no gradient through (1 - pi), no clip
        r_t = 2 pi(y_t) / (omega(y_t) + pi_old(y_t)),   omega = pi_old / 2 + 1 / (2 vocab_size)

    Who made a demonstration is not known, so its importance weight has the old policy and a guess of its author in the divisor
    (multiple importance sampling); pi_old is the policy at the start of the update. What the policy finds unlikely in a right
    answer counts most (exploration-based advantage). Both parts are in one mean (`aggregation`), with all tokens in it. The
    equations are from the paper's summaries; the value of `focus` and GRPO's clip on the sampled part are ours.
    """

    config: RLPlusConfig

    def __init__(self, config: RLPlusConfig, *, channels: Mapping[str, float], vocab_size: int, max_tokens: int = 0) -> None:
        super().__init__(config, channels=channels, max_tokens=max_tokens)
        if vocab_size < 1:
            raise ConfigError("vocab_size", vocab_size, "give the number of tokens of the vocabulary")
        self.vocab_size = vocab_size

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"external_logprob"}

    @property
    def components(self) -> Mapping[str, Component]:
        shown = ("external/ratio", "external/probability")
        own = Component(self._external_loss, kind=EXTERNAL, metrics=shown, denominator="policy", by_advantage=True)
        return {**super().components, "external": own}

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        out = super().annotate(rows, collective)
        out["component"] = torch.where(external(rows), EXTERNAL, out["component"]).to(torch.int8)
        return out

    def stats(self, rows: Batch, rewards: Tensor) -> Batch:
        # a user watches what the policy does by itself
        return super().stats(Batch(rows | {"loss_mask": rows["loss_mask"] & ~external(rows)}), rewards)

    def _external_loss(self, part: Part, denominator: float) -> Loss:
        return external_loss(
            part.outputs["logprob"],
            part.fields["external_logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            vocab_size=self.vocab_size,
            focus=self.config.focus,
            denominator=denominator,
            count=part.count,
        )
