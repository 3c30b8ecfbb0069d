"""RLPD: SAC whose batches are half of a data set, half of what was played (Ball et al. 2023, arXiv:2302.02948).

Beside the halves (the graph makes them), it differs from `agents/sac.py` in the critics: there are many, with layer
normalisation, which bounds what they say of actions that nobody tried (sec. 4.2); a target is the least of a few that are drawn
anew for each update (as in REDQ, Chen et al. 2021, arXiv:2101.05982), and the actor follows the mean of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.sac import SACConfig, SACLearner
from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_rng
from runnel.losses.actor import soft_actor_loss
from runnel.losses.base import Loss
from runnel.nets.continuous import SquashedGaussianActor
from runnel.ops.targets import soft_target


@dataclass(frozen=True)
class RLPDConfig(SACConfig):
    """Hyperparameters of RLPD: those of SAC, and of its critics."""

    on_resume: ClassVar[OnResume] = may_change("subset", "entropy_backup", "actor_every") | stays(
        "num_critics", "layer_norm", why="what was learned is of those networks"
    )

    num_critics: int = bounded(10, at_least=1)
    """Number of critics."""
    subset: int = bounded(2, at_least=1)
    """Critics of which a target is the least; drawn anew for each update."""
    layer_norm: bool = True
    """Normalise the layers of the critics (not of the actor) before each nonlinearity."""
    entropy_backup: bool = True
    """Count the entropy of the next action in targets. Off where rewards are sparse."""
    actor_every: int = bounded(20, at_least=1)
    """Updates of the critics for one of the actor and the temperature."""

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "rlpd.")
        if self.subset > self.num_critics:
            raise ConfigError("rlpd.subset", self.subset, f"there are {self.num_critics} critics; use at most so many")


class RLPDLearner(SACLearner):
    """A `SACLearner` of an ensemble. Transitions of all readers are one batch."""

    config: RLPDConfig
    actor: SquashedGaussianActor

    def step(self, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
        """SAC's step; between two updates of the actor that of the critics alone."""
        if (self.version + 1) % self.config.actor_every == 0:
            return super().step(batch)
        with torch.no_grad():
            temperature = self._log_temperature.exp()
        critic = self.critic_loss(batch, temperature)
        norm = self._critic_adam.step(critic.value, max_norm=None, collective=self.collective)
        self._target.follow(self.config.tau)
        self.actor.explore.zero_()
        shown = {"loss/critic": critic.value, **critic.metrics, "temperature": temperature, "grad_norm": norm}
        return {name: x.detach() for name, x in shown.items()}, critic.error

    def target(self, batch: Batch, temperature: Tensor) -> Tensor:
        """`r + discount (min_{i in Z} Q_i(s', a') - temperature log pi(a' | s'))`, Z a random subset of the critics. `[B]`"""
        reward, discount = batch["rewards/env"], batch["discount"]
        following = {k: batch["next_" + k] for k in self.actor.env_spec.obs}
        action, logprob = self.actor.sample(following, self.draw(len(reward)))
        next_q = self.target_critic.q(following, action)[self.chosen()]
        weight = temperature if self.config.entropy_backup else torch.zeros_like(temperature)
        return soft_target(reward, discount, next_q, next_logprob=logprob, temperature=weight)

    def chosen(self) -> list[int]:
        """The critics of this update's target: drawn from the version alone, so that all ranks have the same."""
        order = make_rng(self._seed, "critics", self.version).permutation(self.config.num_critics)
        return sorted(order[: self.config.subset].tolist())

    def actor_loss(self, batch: Batch, temperature: Tensor) -> Loss:
        """`temperature log pi(a | s) - mean_i Q_i(s, a)`."""
        action, logprob = self.actor.sample(batch, self.draw(len(batch["discount"])))
        mean = self.critic.q(batch, action).mean(0, keepdim=True)
        return soft_actor_loss(mean, logprob=logprob, temperature=temperature, denominator=self._count(batch))
