"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477) from replay.

Three changes to DDPG (which runs on the same learner, see `ddpg.py`): the smaller of two target critics (alg. 1), noise on
the target's action, and an actor that moves less often than its critics. Losses are in `losses/actor.py`, targets in
`ops/targets.py`, networks in `nets/continuous.py`. A variant overrides `critic_loss`, `target` or `actor_loss`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.base import BEFORE_UPDATES, ReplayState, Sizes, merge_transitions, read_metrics, split_errors
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.records import Batch, Segment
from runnel.core.resuming import DISCOUNTED, OnResume, live, may_change, stays
from runnel.core.rng import make_seed
from runnel.losses.actor import deterministic_actor_loss, ensemble_td_loss
from runnel.losses.base import Loss
from runnel.nets.continuous import DeterministicActor, QEnsemble
from runnel.nets.optim import Adam, Target
from runnel.ops.targets import min_target

SUMS = ("loss/critic", "loss/actor")
"""Metrics that were divided by the count of the whole batch."""


@dataclass(frozen=True)
class TD3Config:
    """Hyperparameters of TD3. The defaults are those with which CleanRL reports MuJoCo tasks at a million steps."""

    on_resume: ClassVar[OnResume] = (
        live("actor_lr", "critic_lr", "tau", "exploration_noise", "target_noise", "target_noise_clip", "actor_delay")
        | may_change("metrics_every")
        | stays("gamma", why=DISCOUNTED)
        | stays("batch_size", why="batches of that size are on their way")
    )

    actor_lr: float | str = scheduled(3e-4)
    """Learning rate of the actor: a number, or a schedule such as "linear(3e-4, 0)"."""
    critic_lr: float | str = scheduled(3e-4)
    """Learning rate of the critics."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards; the replay buffer applies it."""
    batch_size: int = bounded(256, at_least=1)
    """Transitions in one update."""
    tau: float = bounded(0.005, above=0, at_most=1)
    """How far the target networks move to the online ones when they move."""
    exploration_noise: float | str = scheduled(0.1)
    """Standard deviation of the noise on actions played, where the action's range is (-1, 1): a number or a schedule."""
    target_noise: float = bounded(0.2, at_least=0, finite=True)
    """Standard deviation of the noise on the target's action; 0 adds none."""
    target_noise_clip: float = bounded(0.5, at_least=0, finite=True)
    """The most by which that noise changes an action."""
    actor_delay: int = bounded(2, at_least=1)
    """Move actor and targets once in so many updates of the critics."""
    metrics_every: int = bounded(1, at_least=1)
    """Read the metrics of each this many updates; on a GPU, reading them waits for the update."""

    def check(self, name: str = "td3") -> None:
        """Raise a `ConfigError` for settings that cannot train; `name` is that of the algorithm."""
        check_bounds(self, f"{name}.")


class TD3Learner(ReplayState):
    """Consumes sampled transitions `[B]`, one batch a version; owns the actor, the critics and the targets of both."""

    seed_name, exploration = "td3", ("explore", "noise_scale")

    config: TD3Config

    def __init__(
        self,
        config: TD3Config,
        actor: DeterministicActor,
        critic: QEnsemble,
        *,
        seed: int,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        config.check()
        self.config, self.device = config, torch.device(device)
        self.actor, self.critic = actor.to(device), critic.to(device)
        self.collective: Collective = collective or SingleProcess()
        self.version, self._seed = 0, seed
        self._actor_adam = Adam(actor.parameters(), lr=schedule.at(config.actor_lr, 0.0))
        self._critic_adam = Adam(critic.parameters(), lr=schedule.at(config.critic_lr, 0.0))
        # targets follow slowly (`tau`): with the online networks, every step towards a target would move the target as well
        self.target_actor = copy.deepcopy(actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(critic).requires_grad_(False)
        self._targets = Target(actor, self.target_actor), Target(critic, self.target_critic)
        targets = {"target_actor": self.target_actor, "target_critic": self.target_critic}
        self._nets = {"actor": actor, "critic": critic, **targets}
        self._adams = {"actor": self._actor_adam, "critic": self._critic_adam}
        self._generator = torch.Generator(device).manual_seed(make_seed(seed, self.seed_name, self.collective.rank))
        self._params = dict(actor.state_dict())
        self._sizes: Sizes = {}
        self._home = Batch()
        actor.noise_scale.fill_(schedule.at(config.exploration_noise, 0.0))

    # ----------------------------------------------------------------------------------------------------------- update
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All transitions in one batch `[B]`. The noise of exploration moves here and is published after the update."""
        batch, self._sizes = merge_transitions(segments, home=self._home, device=self.device, version=self.version)
        self._actor_adam.lr = schedule.at(self.config.actor_lr, progress)
        self._critic_adam.lr = schedule.at(self.config.critic_lr, progress)
        self.actor.noise_scale.fill_(schedule.at(self.config.exploration_noise, progress))
        return batch

    def update(self, batch: Batch) -> Update:
        """One step of the critics and, each `actor_delay` updates, of the actor and the targets; one version."""
        numbers, errors = self.step(batch, (self.version + 1) % self.config.actor_delay == 0)
        self.version += 1
        metrics = {}
        if self.version % self.config.metrics_every == 0:
            metrics = read_metrics(numbers, self.collective, sums=SUMS, version=self.version)
        return Update(metrics, split_errors(self._sizes, batch["index"], errors))

    def step(self, batch: Batch, move_actor: bool) -> tuple[Mapping[str, Tensor], Tensor]:
        """The whole update on the device: metrics by name `[]`, and the errors by transition `[B]`."""
        critic = self.critic_loss(batch)
        norm = self._critic_adam.step(critic.value, max_norm=None, collective=self.collective)
        numbers = {"loss/critic": critic.value, **critic.metrics, "grad_norm": norm}
        if move_actor:  # less often than the critics, so that it follows values that have settled (sec. 5.2)
            actor = self.actor_loss(batch)
            self._actor_adam.step(actor.value, max_norm=None, collective=self.collective)
            for target in self._targets:
                target.follow(self.config.tau)
            numbers |= {"loss/actor": actor.value, **actor.metrics}
        self.actor.explore.zero_()  # from the first update on the policy plays, and no longer at random
        return {name: x.detach() for name, x in numbers.items()}, critic.error

    # ----------------------------------------------------------------------------------------------------------- losses
    def critic_loss(self, batch: Batch) -> Loss:
        """Each critic's squared error to the target."""
        with torch.no_grad():
            target = self.target(batch)
        q = self.critic.q(batch, self.actor.box.normalise(batch["action"]))
        loss = ensemble_td_loss(q, target, weight=batch["weight"], denominator=self._count(batch))
        loss.metrics |= {"td_error": loss.error.mean(), "q": q.detach().mean()}
        return loss

    def target(self, batch: Batch) -> Tensor:
        """`r + discount min_i Q_i(s', a')` by the target networks, a' smoothed by clipped noise (eqs. 14 and 15). `[B]`"""
        following = {k: batch["next_" + k] for k in self.actor.env_spec.obs}
        action = self.target_actor.action(following)
        if self.config.target_noise:  # so that the actor cannot make use of a narrow peak of Q (sec. 5.3)
            noise = torch.randn(action.shape, generator=self._generator, device=self.device) * self.config.target_noise
            action = (action + noise.clamp_(-self.config.target_noise_clip, self.config.target_noise_clip)).clamp_(-1.0, 1.0)
        return min_target(batch["rewards/env"], batch["discount"], self.target_critic.q(following, action))

    def actor_loss(self, batch: Batch) -> Loss:
        """`-Q_1(s, mu(s))`: the gradient passes through the first critic to the action.

        The smaller of both is for targets, where overrated values would add up; here one critic gives the direction (alg. 1).
        """
        q = self.critic.q(batch, self.actor.action(batch), copies=1)
        return deterministic_actor_loss(q, denominator=self._count(batch))

    def _count(self, batch: Batch) -> int:
        """Rows of the whole batch: each rank has a part, and sums over its own."""
        return len(batch["discount"]) * self.collective.world_size

    # ------------------------------------------------------------------------------------------------------------ state
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Start the actor and its target from the weights of another run."""
        super().start_from(params)
        self._targets[0].follow(1.0)

    def not_taken(self) -> Sequence[str]:
        noise = f"the exploration noise (it begins at {self.actor.noise_scale.item():g})"
        return ("the critics", "the optimisers' moments", "the replay memory", noise, BEFORE_UPDATES)
