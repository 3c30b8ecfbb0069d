"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971) from replay.

TD3 grew out of DDPG by three changes; with them switched off (one critic, no noise on the target's action, an actor that
moves at every update), its learner is DDPG:

    y = r + discount Q_target(s', mu_target(s')),   L_Q = (Q(s, a) - y)^2 / 2,   L_mu = -Q(s, mu(s))

So the update is the one in `td3.py`. As is usual now, Gaussian noise explores instead of the paper's correlated noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from runnel.agents.td3 import TD3Config, TD3Learner
from runnel.core.bounds import bounded, scheduled
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.live_settings import live_fields
from runnel.core.resuming import DISCOUNTED, OnResume, live, may_change, stays
from runnel.nets.continuous import DeterministicActor, QEnsemble


@dataclass(frozen=True)
class DDPGConfig:
    """Hyperparameters of DDPG."""

    on_resume: ClassVar[OnResume] = (
        live("actor_lr", "critic_lr", "tau", "exploration_noise")
        | may_change("metrics_every")
        | stays("gamma", why=DISCOUNTED)
        | stays("batch_size", why="batches of that size are on their way")
    )

    actor_lr: float | str = scheduled(3e-4)
    """Learning rate of the actor: a number, or a schedule such as "linear(3e-4, 0)"."""
    critic_lr: float | str = scheduled(3e-4)
    """Learning rate of the critic."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards; the replay buffer applies it."""
    batch_size: int = bounded(256, at_least=1)
    """Transitions in one update."""
    tau: float = bounded(0.005, above=0, at_most=1)
    """How far the target networks move to the online ones after each update."""
    exploration_noise: float | str = scheduled(0.1)
    """Standard deviation of the noise on actions played, where the action's range is (-1, 1): a number or a schedule."""
    metrics_every: int = bounded(1, at_least=1)
    """Read the metrics of each this many updates; on a GPU, reading them waits for the update."""

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        self.as_td3().check("ddpg")

    def as_td3(self) -> TD3Config:
        """The settings of TD3's learner under which it is DDPG (with a critic of one copy)."""
        return TD3Config(
            actor_lr=self.actor_lr,
            critic_lr=self.critic_lr,
            gamma=self.gamma,
            batch_size=self.batch_size,
            tau=self.tau,
            exploration_noise=self.exploration_noise,
            target_noise=0.0,
            actor_delay=1,
            metrics_every=self.metrics_every,
        )


class DDPGLearner(TD3Learner):
    """TD3's learner with one critic and without TD3's changes."""

    def __init__(
        self,
        config: DDPGConfig,
        actor: DeterministicActor,
        critic: QEnsemble,
        *,
        seed: int,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        config.check()
        if critic.head.copies != 1:
            raise ConfigError("critic", critic.head.copies, "DDPG has one critic; use copies=1, or td3 for two")
        super().__init__(config.as_td3(), actor, critic, seed=seed, collective=collective, device=device)

    @property
    def takes(self) -> Mapping[type, Sequence[str]]:
        """The live fields of DDPG's config, which TD3's has too."""
        return {DDPGConfig: live_fields(DDPGConfig)}
