"""OREAL: behaviour cloning of right answers, and a policy gradient of wrong ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import (
    Component,
    Part,
    PolicyAlgorithm,
    PolicyConfig,
    entropy_component,
    kl_component,
    sum_channels,
)
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import reinforce_loss
from runnel.ops.credit import leave_one_out, row_index, row_sum


@dataclass(frozen=True)
class OREALConfig(PolicyConfig):
    """Outcome rewards: right and wrong completions have losses of their own."""

    on_resume: ClassVar[OnResume] = live("negative_coef", "pass_reward") | may_change("weigh_right")

    kl_coef: float = bounded(0.01, at_least=0)
    """Weight of the KL to a reference policy; 0 keeps no reference."""
    negative_coef: float = bounded(0.5, at_least=0)
    """Weight of the loss of wrong completions."""
    weigh_right: bool = True
    """Right completions count by the share of wrong ones among the prompt's others; otherwise all count alike."""
    pass_reward: float = bounded(0.5, finite=True)
    """A completion is a right one from this reward on."""


class OREAL(PolicyAlgorithm):
    """Outcome reward-based learning (Lyu et al. 2025, OREAL, arXiv:2502.06781, sec. 2), without its token-level reward model.

        b_i = 1 where R_i >= pass_reward, else 0;   A_i = b_i - mean_{j != i} b_j                          within the group
        L   = -1/N+ sum_{i right} w_i sum_t log pi(y_it) - negative_coef/N- sum_{i wrong} A_i sum_t log pi(y_it) + kl_coef KL

    w_i is 1 as in the paper's behaviour cloning, or with `weigh_right` A_i, as in the settings that its authors published
    (`pos_mult_adv`; their reward shaping is leave-one-out, and negative_coef 0.5 and kl_coef 0.01 are theirs, too). N+ and N-
    are the tokens of right and of wrong completions of the batch. Neither term has an importance weight.
    """

    config: OREALConfig
    fresh_only = True

    @property
    def components(self) -> Mapping[str, Component]:
        c, out = self.config, {"policy": Component(self.loss, by_advantage=True)}
        if c.negative_coef:
            out["wrong"] = Component(self._wrong_loss, coef=c.negative_coef, by_advantage=True)
        if c.kl_coef and c.kl_in == "loss":
            out["kl"] = Component(kl_component, coef=c.kl_coef, metrics=("kl",), denominator="tokens")
        if c.entropy_coef:
            out["entropy"] = Component(entropy_component, coef=c.entropy_coef, denominator="tokens")
        return out

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        right = (rewards >= self.config.pass_reward).float()
        credit = leave_one_out(right, rows["group"])
        return credit if self.config.weigh_right else torch.where(right > 0, right, credit)

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        out = super().annotate(rows, collective)
        # those who passed, with the KL in the reward where it is wanted: as `credit` saw them
        passed = self.shaped(sum_channels(rows, self.channels), rows) >= self.config.pass_reward
        row, count = row_index(rows["row_length"]), out["denominator/policy"]
        right = row_sum((rows["loss_mask"] & passed[token_owner(rows)]).float(), row, len(count))
        return Batch(out | {"denominator/policy": right, "denominator/wrong": count - right, "denominator/tokens": count})

    def loss(self, part: Part, denominator: float) -> Loss:
        return _one_sided(part, part.fields["advantage"].clamp(min=0.0), denominator)

    def _wrong_loss(self, part: Part, denominator: float) -> Loss:
        return _one_sided(part, part.fields["advantage"].clamp(max=0.0), denominator)


def _one_sided(part: Part, advantage: Tensor, denominator: float) -> Loss:
    return reinforce_loss(part.outputs["logprob"], advantage, weight=part.fields["weight"], denominator=denominator)
