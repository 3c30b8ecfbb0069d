"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561): actor-critic on the data of older policies, corrected by V-trace.

Actors run ahead and play with whatever version they have; the learner takes each batch once. Everything but the credit is
the update of `agents/a2c.py`; the credit is `vtrace` in `ops/returns.py`. The paper uses RMSProp, here it is Adam.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from runnel.agents.a2c import A2CConfig, A2CLearner
from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change
from runnel.ops.returns import vtrace


@dataclass(frozen=True)
class IMPALAConfig(A2CConfig):
    """Hyperparameters of IMPALA."""

    on_resume: ClassVar[OnResume] = may_change("rho_bar", "c_bar")

    rho_bar: float = bounded(1.0, above=0)
    """Importance weights are cut at this: 1 learns the value of a policy between the actors' and the learner's; more, one
    nearer to the learner's, with more variance."""
    c_bar: float = bounded(1.0, above=0)
    """Weights by which later errors count for earlier steps are cut at this: less variance, slower correction."""

    def check(self, name: str = "impala") -> None:
        """Raise a `ConfigError` for settings that cannot train; `name` is the field that holds this config."""
        super().check(name)
        if not self.rho_bar >= self.c_bar:
            raise ConfigError(f"{name}.rho_bar", self.rho_bar, f"must be at least c_bar ({self.c_bar:g})")


class IMPALALearner(A2CLearner):
    """Consumes `[T, B]` segments of older policies, one batch and one optimiser step a version."""

    config: IMPALAConfig

    def credit(self, batch: Batch, log_ratio: Tensor, values: Tensor, next_values: Tensor) -> tuple[Tensor, Tensor]:
        """V-trace targets, and advantages times their truncated importance weights. `[T, B]` each"""
        found = vtrace(
            batch["rewards/env"],
            values,
            next_values,
            log_ratio,
            batch["terminated"],
            batch["truncated"],
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
            rho_bar=self.config.rho_bar,
            c_bar=self.config.c_bar,
        )
        # the actions are those of an older policy: their importance weight belongs to the policy gradient (sec. 4.2)
        return found.targets, found.rhos * found.advantages
