"""Policies by regression on pairs of their own completions: REBEL and INPO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import Part
from runnel.llm.algorithms.dpo import REGRESSION_METRICS, PairAlgorithm, PairLossConfig, annotate_best_and_worst, pairs_of
from runnel.losses.base import Loss
from runnel.losses.preference import pair_regression_loss


class OnOwnPairs(PairAlgorithm):
    """Pairs of the best and the worst completion of each prompt by reward. Groups in which all rewards are equal have none."""

    tempered = True

    def __init__(self, config: PairLossConfig, *, channels: Mapping[str, float]) -> None:
        super().__init__(config)
        if not channels:
            raise ConfigError("channels", dict(channels), "name at least one reward channel with its weight")
        self.channels = dict(channels)

    @property
    def metrics(self) -> tuple[str, ...]:
        return REGRESSION_METRICS

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        return annotate_best_and_worst(rows, self.channels, name=self.name)


@dataclass(frozen=True)
class REBELConfig(PairLossConfig):
    """Regression to relative rewards."""

    on_resume: ClassVar[OnResume] = live("eta")

    eta: float = bounded(1.0, above=0)
    """How far one batch may move the policy: large is far."""


class REBEL(OnOwnPairs):
    """Regression to relative rewards (Gao et al. 2024, arXiv:2404.16767, algorithm 1): the change of the policy shall tell the
    difference of the rewards.

        L = 1/P sum_p ( 1/eta [log pi(y)/pi_t(y) - log pi(y')/pi_t(y')] - [R(y) - R(y')] )^2

    pi_t is the policy that sampled the two. The paper draws two completions; here they are the best and the worst of a group.
    """

    config: REBELConfig
    name = "rebel"

    def loss(self, part: Part, denominator: float) -> Loss:
        return pair_regression_loss(
            part.outputs["logprob"],
            part.fields["logprob"],
            part.fields["advantage"],
            part.fields["gap"],
            scale=1.0 / self.config.eta,
            **pairs_of(part, denominator),
        )


@dataclass(frozen=True)
class INPOConfig(PairLossConfig):
    """Iterative Nash policy optimisation."""

    on_resume: ClassVar[OnResume] = live("eta", "tau")

    eta: float = bounded(0.05, above=0)
    """Step size of the game; a preferred completion shall gain 1 / (2 eta) in log-ratio over the other."""
    tau: float = bounded(0.02, at_least=0)
    """Strength of the KL to the reference, at most `eta`."""

    def __post_init__(self) -> None:
        check_bounds(self, "inpo.")
        if self.tau > self.eta:
            raise ConfigError("inpo.tau", self.tau, f"the reference's share is tau / eta; use at most eta = {self.eta:g}")


class INPO(OnOwnPairs):
    """Iterative Nash policy optimisation (Zhang et al. 2024, arXiv:2407.00617, sec. 3): mirror descent in the game of being
    preferred, towards a policy that no other is preferred to.

        h = log pi(y+)/pi(y-) - tau/eta log pi_ref(y+)/pi_ref(y-) - (eta - tau)/eta log pi_t(y+)/pi_t(y-)
        L = 1/P sum_p (h_p - 1/(2 eta))^2

    pi_t is the policy that sampled the two, and here changes with every batch; the reward stands for the paper's preference
    model: of two completions, the one with the higher reward is always preferred.
    """

    config: INPOConfig
    name = "inpo"
    needs: frozenset[str] = frozenset({"reference_logprob"})

    def loss(self, part: Part, denominator: float) -> Loss:
        sign, share = part.fields["advantage"], self.config.tau / self.config.eta
        base = share * part.fields["reference_logprob"] + (1.0 - share) * part.fields["logprob"]
        target = (sign > 0) * part.fields["weight"] / (2.0 * self.config.eta)
        return pair_regression_loss(
            part.outputs["logprob"],
            base,
            sign,
            target,
            scale=1.0,
            **pairs_of(part, denominator),
        )
