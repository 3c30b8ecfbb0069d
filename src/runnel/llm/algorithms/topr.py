"""TOPR: good samples are imitated, bad ones count only while the policy would still make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import Part, PolicyConfig, TrajectoryAlgorithm, trajectory_loss
from runnel.losses.base import Loss
from runnel.losses.token import tapered_loss


@dataclass(frozen=True)
class TOPRConfig(PolicyConfig):
    """Tapered off-policy REINFORCE."""

    on_resume: ClassVar[OnResume] = live("baseline")

    baseline: float = bounded(0.5, finite=True)
    """Completions with a reward above this are good ones, those below are bad ones."""


class TOPR(TrajectoryAlgorithm):
    """Tapered off-policy REINFORCE (Le Roux et al. 2025, arXiv:2503.14286, sec. 3; its canonical form, a+ = b+ = b- = 1 and
    a- = 0).

        A_i = R_i - baseline,   r_i = pi(y_i) / mu(y_i)
        L   = -1/R sum_i c_i A_i log pi(y_i)         c_i = 1 where A_i >= 0, else min(r_i, 1); no gradient through c_i

    A fixed baseline, and not the mean of the group: with rewards 0 and 1, 0.5 makes them the paper's -1 and 1, and a lower one
    gives good samples more of the gradient (sec. 3.3). It may be used on samples of any age, without a KL.
    """

    config: TOPRConfig
    metrics = ("taper", "approx_kl")

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return rewards - self.config.baseline

    def loss(self, part: Part, denominator: float) -> Loss:
        return trajectory_loss(tapered_loss, part, denominator)
