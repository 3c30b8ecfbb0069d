"""Preferences without a reference: SimPO, CPO, ORPO and RRHF on pairs of answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from runnel.core.bounds import bounded
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import Part
from runnel.llm.algorithms.dpo import MARGIN_METRICS, PairAlgorithm, PairLossConfig, pairs_of
from runnel.losses.base import Loss
from runnel.losses.preference import dpo_loss, odds_ratio_loss, rank_loss, simpo_loss


@dataclass(frozen=True)
class SimPOConfig(PairLossConfig):
    """Simple preference optimisation."""

    on_resume: ClassVar[OnResume] = live("beta", "gap")

    beta: float = bounded(2.0, above=0)
    """By how much mean log-probabilities are multiplied."""
    gap: float = bounded(1.0, at_least=0)
    """How far the chosen answer shall be ahead; the paper's gamma."""


class SimPO(PairAlgorithm):
    """Simple preference optimisation (Meng et al. 2024, arXiv:2405.14734, eq. 6): what is compared is the mean log-probability
    of a token, so long answers have no advantage.

    L = -1/P sum_p log sigmoid(beta/|y+| log pi(y+) - beta/|y-| log pi(y-) - gap)
    """

    config: SimPOConfig
    name = "simpo"

    def loss(self, part: Part, denominator: float) -> Loss:
        return simpo_loss(
            part.outputs["logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            beta=self.config.beta,
            gap=self.config.gap,
            **pairs_of(part, denominator),
        )


@dataclass(frozen=True)
class CPOConfig(PairLossConfig):
    """Contrastive preference optimisation."""

    on_resume: ClassVar[OnResume] = live("beta")

    beta: float = bounded(0.1, above=0)
    """By how much the difference of log-probabilities is multiplied."""
    chosen_coef: float = bounded(1.0, at_least=0)
    """Weight of the chosen answers' cross entropy, a mean over their tokens."""


class CPO(PairAlgorithm):
    """Contrastive preference optimisation (Xu et al. 2024, arXiv:2401.08417, eq. 3 to 5): DPO under a uniform reference, which
    drops out, and the cross entropy of the chosen answers to hold the policy.

        L = -1/P sum_p log sigmoid(beta [log pi(y+) - log pi(y-)])  -  chosen_coef/N sum_t log pi(y+_t)

    The paper's second term is a sum over an answer; here, as for every recipe on pairs, it is a mean over all chosen tokens.
    """

    config: CPOConfig
    name = "cpo"

    @property
    def metrics(self) -> tuple[str, ...]:
        return MARGIN_METRICS

    def loss(self, part: Part, denominator: float) -> Loss:
        logprob = part.outputs["logprob"]
        return dpo_loss(
            logprob,
            torch.zeros_like(logprob),
            part.fields["advantage"],
            beta=self.config.beta,
            **pairs_of(part, denominator),
        )


@dataclass(frozen=True)
class ORPOConfig(PairLossConfig):
    """Odds ratio preference optimisation."""

    on_resume: ClassVar[OnResume] = live("odds_coef")

    odds_coef: float = bounded(0.1, above=0)
    """Weight of the odds ratio beside the cross entropy; the paper's lambda."""
    chosen_coef: float = bounded(1.0, at_least=0)
    """Weight of the chosen answers' cross entropy, a mean over their tokens."""


class ORPO(PairAlgorithm):
    """Odds ratio preference optimisation (Hong et al. 2024, arXiv:2403.07691, eq. 6 and 7): supervised fine-tuning on chosen
    answers, which also makes rejected ones less likely.

    L = -chosen_coef/N sum_t log pi(y+_t)  -  odds_coef/P sum_p log sigmoid(log [odds(y+) / odds(y-)])
    odds(y) = P(y) / (1 - P(y)),   P(y) = pi(y)^(1/|y|)
    """

    config: ORPOConfig
    name = "orpo"

    def loss(self, part: Part, denominator: float) -> Loss:
        found = odds_ratio_loss(
            part.outputs["logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            **pairs_of(part, denominator),
        )
        return Loss(self.config.odds_coef * found.value, found.metrics)


@dataclass(frozen=True)
class RRHFConfig(PairLossConfig):
    """Rank responses to align with human feedback."""

    chosen_coef: float = bounded(1.0, at_least=0)
    """Weight of the chosen answers' cross entropy, a mean over their tokens."""


class RRHF(PairAlgorithm):
    """Rank responses to align (Yuan et al. 2023, arXiv:2304.05302, eq. 2 to 4), for two responses to a prompt: the better one
    shall have the higher mean log-probability, and is imitated.

    L = 1/P sum_p max(0, log pi(y-)/|y-| - log pi(y+)/|y+|)  -  chosen_coef/N sum_t log pi(y+_t)
    """

    config: RRHFConfig
    name = "rrhf"

    def loss(self, part: Part, denominator: float) -> Loss:
        return rank_loss(
            part.outputs["logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            **pairs_of(part, denominator),
        )
