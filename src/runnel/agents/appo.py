"""Asynchronous PPO: the clipped surrogate on the data of older policies, with advantages by V-trace.

As in Sample Factory (Petrenko et al. 2020, arXiv:2006.11751) the ratio that is clipped is that of the learner's policy to the
one that acted, so an action which the learner has already moved away from earns no more gradient. V-trace (Espeholt et al.
2018, arXiv:1802.01561) estimates values and advantages of the learner's policy, not of the one that acted; the advantages
carry no weights of their own, because the ratio is their importance weight. On data of the newest version all of this is
PPO. `staleness.max_lag` bounds how old data may be.

The credit is here; everything else, the update over shuffled minibatches included, is `agents/ppo.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from runnel.agents.deciding import refuse_idle_rows
from runnel.agents.ppo import PPOConfig, PPOLearner
from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change
from runnel.ops.returns import vtrace


@dataclass(frozen=True)
class APPOConfig(PPOConfig):
    """Hyperparameters of asynchronous PPO: those of PPO, and the bars of V-trace."""

    on_resume: ClassVar[OnResume] = may_change("rho_bar", "c_bar")

    rho_bar: float = bounded(1.0, above=0)
    """Importance weights in the critic's targets are cut at this: 1 learns the value of a policy between the actors' and the
    learner's; more, one nearer to the learner's, with more variance."""
    c_bar: float = bounded(1.0, above=0)
    """Weights by which later errors count for earlier steps are cut at this: less variance, slower correction."""

    def check(self, batch_size: int) -> None:
        """Raise a `ConfigError` for settings that cannot train on `batch_size` rows (steps; environments if recurrent)."""
        try:
            super().check(batch_size)
        except ConfigError as error:
            raise ConfigError(error.field.replace("ppo.", "appo.", 1), error.value, error.fix) from None
        if not self.rho_bar >= self.c_bar:
            raise ConfigError("appo.rho_bar", self.rho_bar, f"must be at least c_bar ({self.c_bar:g})")


class APPOLearner(PPOLearner):
    """Consumes `[T, B]` segments of older policies, one batch a version; owns the network and its optimiser."""

    config: APPOConfig

    def credit(self, data: Batch, rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values, advantages and targets of this learner's policy by V-trace. `[T, B]` each"""
        refuse_idle_rows(data, self)  # V-trace has no rule for rows that wait
        scores, values, next_values = self.net.unroll(data)
        mask = data["action_mask"][:-1] if "action_mask" in data else None
        logprob, _ = self.net.evaluate_scores(scores, data["action"], mask)
        found = vtrace(
            rewards,
            values,
            next_values,
            logprob - data["logprob"],
            data["terminated"],
            data["truncated"],
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
            rho_bar=self.config.rho_bar,
            c_bar=self.config.c_bar,
        )
        return values, found.advantages, found.targets
