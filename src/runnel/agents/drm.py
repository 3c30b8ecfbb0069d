"""DrM: TD3 that keeps its neurons awake (Xu et al. 2024, arXiv:2310.19668).

A unit is dormant if it answers hardly anything in comparison with the other units of its layer (Sokar et al. 2023,
arXiv:2302.12902). The paper finds that agents which do nothing useful have many of them, whatever their reward. The share of
dormant units of the actor (beta) drives three things:

    perturbation   each `perturb_every` updates  w = f w + (1 - f) w0,  f = clip(1 - perturb_rate beta, low, high), w0 fresh
    exploration    noise = sigmoid((beta - awake_below) noise_steepness); from when beta is below `awake_below` for the first
                   time on, at least the schedule `exploration_noise`, which begins then
    exploitation   y = r + discount (g V(s') + (1 - g) min_i Q_i'(s', a')),  g = exploit sigmoid((awake_below - beta) steepness)

V is an upper expectile of Q over the actions in the replay memory: what the best of them would give. The base is TD3 with its
own networks; the paper's is DrQ-v2, which also shifts images.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core import schedule
from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, may_change
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.losses.actor import expectile_loss
from runnel.losses.base import Loss
from runnel.nets.continuous import DeterministicActor, QEnsemble, VNet
from runnel.nets.optim import Adam
from runnel.ops.dormancy import dormant_share
from runnel.ops.targets import min_target


@dataclass(frozen=True)
class DrMConfig(TD3Config):
    """Hyperparameters of TD3, and of the three mechanisms; their defaults are those of the paper's code."""

    on_resume: ClassVar[OnResume] = may_change(
        *("dormant_below", "perturb_every", "perturb_rate", "perturb_low", "perturb_high"),
        *("awake_below", "noise_steepness", "exploit", "exploit_steepness", "expectile"),
    )

    exploration_noise: float | str = "linear(1, 0.1, 0.5)"
    dormant_below: float = bounded(0.025, at_least=0, below=1)
    """A unit is dormant if its mean activation is at most this share of its layer's mean."""
    perturb_every: int = bounded(20_000, at_least=1)
    """Updates from one perturbation of all networks to the next."""
    perturb_rate: float = bounded(2.0, at_least=0, finite=True)
    """How much more of the weights is drawn anew as more units are dormant."""
    perturb_low: float = bounded(0.2, at_least=0, at_most=1)
    """The least share of the weights that a perturbation leaves."""
    perturb_high: float = bounded(0.9, at_least=0, at_most=1)
    """The largest share of the weights that a perturbation leaves, even if no unit is dormant."""
    awake_below: float = bounded(0.2, above=0, below=1)
    """Share of dormant units at which exploration turns into exploitation."""
    noise_steepness: float = bounded(10.0, above=0, finite=True)
    """How sharply the noise falls around `awake_below`."""
    exploit: float = bounded(0.6, at_least=0, at_most=1)
    """The largest weight of V in targets; 0 keeps the targets of TD3."""
    exploit_steepness: float = bounded(50.0, above=0, finite=True)
    """How sharply that weight rises around `awake_below`."""
    expectile: float = bounded(0.9, above=0, below=1)
    """Which expectile of Q the value V is: 0.5 is the mean, near 1 the best action in the replay memory."""

    def check(self, name: str = "drm") -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        super().check(name)
        if not self.perturb_low <= self.perturb_high:
            raise ConfigError(f"{name}.perturb_high", self.perturb_high, f"must be at least perturb_low ({self.perturb_low:g})")

    def kept(self, dormant: float) -> float:
        """The share of the weights that a perturbation leaves (f)."""
        return min(max(1.0 - self.perturb_rate * dormant, self.perturb_low), self.perturb_high)

    def noise(self, dormant: float, since_awake: float | None) -> float:
        """Standard deviation of the exploration noise; `since_awake` in [0, 1] is the progress since then, None before."""
        asleep = _sigmoid((dormant - self.awake_below) * self.noise_steepness)
        return asleep if since_awake is None else max(asleep, schedule.at(self.exploration_noise, since_awake))

    def exploitation(self, dormant: float) -> float:
        """The weight of V in targets (g)."""
        return self.exploit * _sigmoid((self.awake_below - dormant) * self.exploit_steepness)


def _sigmoid(x: float) -> float:
    return 0.5 * (1.0 + math.tanh(0.5 * x))


MakeNets = Callable[[int], tuple[DeterministicActor, QEnsemble, VNet]]
"""Makes an actor, critics and a value with weights drawn from a seed: at the start, and for each perturbation."""


class DrMLearner(TD3Learner):
    """Consumes sampled transitions `[B]`, one batch a version; owns actor, critics, targets, and the value V."""

    seed_name = "drm"
    config: DrMConfig

    def __init__(self, config: DrMConfig, make: MakeNets, *, seed: int, **rest: Any) -> None:
        actor, critic, value = make(seed)
        super().__init__(config, actor, critic, seed=seed, **rest)
        self.value, self._make = value.to(self.device), make
        self._value_adam = Adam(value.parameters(), lr=schedule.at(config.critic_lr, 0.0))
        self._nets["value"], self._adams["value"] = value, self._value_adam
        self.dormant = 1.0
        self._awake_since: float | None = None
        actor.noise_scale.fill_(config.noise(self.dormant, None))

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """As in TD3; the noise goes by the dormant share of the update before."""
        batch = super().prepare(segments, progress=progress)
        self._value_adam.lr = self._critic_adam.lr
        if self._awake_since is None and self.dormant < self.config.awake_below and self.version:
            self._awake_since = progress
        since = None if self._awake_since is None else progress - self._awake_since
        self.actor.noise_scale.fill_(self.config.noise(self.dormant, since))
        return batch

    def step(self, batch: Batch, move_actor: bool) -> tuple[Mapping[str, Tensor], Tensor]:
        """The dormant share first, then V, then the update of TD3, then perhaps a perturbation."""
        with torch.no_grad():
            share = dormant_share(self.actor.head.hidden(self.actor.torso(batch)), threshold=self.config.dormant_below)
            self.dormant = self.collective.all_reduce(share).item() / self.collective.world_size
        value = self.value_loss(batch)
        self._value_adam.step(value.value, max_norm=None, collective=self.collective)
        numbers, errors = super().step(batch, move_actor)
        if (self.version + 1) % self.config.perturb_every == 0:
            self.perturb()
        extra = {"loss/expectile": value.value.detach(), "dormant": torch.tensor(self.dormant), "noise": self.actor.noise_scale}
        return {**numbers, **extra}, errors

    def value_loss(self, batch: Batch) -> Loss:
        """The expectile regression of V(s) on Q'(s, a) of the replay memory's actions."""
        with torch.no_grad():
            q = self.target_critic.q(batch, self.actor.box.normalise(batch["action"])).amin(0)
        return expectile_loss(self.value(batch), q, expectile=self.config.expectile, denominator=self._count(batch))

    def target(self, batch: Batch) -> Tensor:
        """A mixture of TD3's target and of the one by V. `[B]`"""
        share = self.config.exploitation(self.dormant)
        following = {k: batch["next_" + k] for k in self.actor.env_spec.obs}
        best = min_target(batch["rewards/env"], batch["discount"], self.value(following).unsqueeze(0))
        return torch.lerp(super().target(batch), best, share)

    @torch.no_grad()
    def perturb(self) -> None:
        """Move the weights of all online networks towards fresh ones; moments of Adam and target networks stay."""
        share = 1.0 - self.config.kept(self.dormant)
        fresh = self._make(make_seed(self._seed, "perturbation", self.version))
        for net, drawn in zip((self.actor, self.critic, self.value), fresh, strict=True):
            for old, new in zip(net.parameters(), drawn.parameters(), strict=True):
                old.lerp_(new.to(old.device), share)

    # ------------------------------------------------------------------------------------------------------------ state
    def state_dict(self) -> State:
        return {**super().state_dict(), "dormant": self.dormant, "awake_since": self._awake_since}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.dormant, self._awake_since = state["dormant"], state["awake_since"]
