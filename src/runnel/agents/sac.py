"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) from replay, for continuous and for discrete actions.

An update is three steps: the critics towards `r + discount (min Q_target(s', a') - temperature log pi(a' | s'))`, the actor
towards actions that the critics value and that keep its entropy up, and the temperature towards a set entropy. Discrete
actions (Christodoulou 2019, arXiv:1910.07207) take expectations where continuous ones take samples. Losses are in
`losses/actor.py`, targets in `ops/targets.py`, networks in `nets/continuous.py`. A variant overrides `critic_loss`, `target`,
`actor_loss` or `temperature_loss`, or calls `super()` and adds a term.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from runnel.agents.base import BEFORE_UPDATES, ReplayState, Sizes, merge_transitions, read_metrics, split_errors
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import ConfigError
from runnel.core.records import Batch, Segment
from runnel.core.resuming import DISCOUNTED, OnResume, live, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.spaces import ActionSpec
from runnel.core.state import State
from runnel.losses.actor import ensemble_td_loss, soft_actor_loss, soft_actor_loss_discrete, temperature_loss
from runnel.losses.base import Loss
from runnel.nets.continuous import CategoricalActor, QEnsemble, SquashedGaussianActor, TeamGaussianActor
from runnel.nets.optim import Adam, Target
from runnel.ops.targets import soft_target, soft_target_discrete

SUMS = ("loss/critic", "loss/actor", "loss/temperature", "entropy")
"""Metrics that were divided by the count of the whole batch."""


@dataclass(frozen=True)
class SACConfig:
    """Hyperparameters of SAC. The defaults are those with which CleanRL reports MuJoCo tasks at a million steps."""

    on_resume: ClassVar[OnResume] = (
        live("actor_lr", "critic_lr", "tau")
        | may_change("auto_temperature", "target_entropy", "entropy_share", "metrics_every")
        | stays("gamma", why=DISCOUNTED)
        | stays("batch_size", why="batches of that size are on their way")
        | stays("temperature", why="it is where the temperature started; the checkpoint has what it is now")
    )

    actor_lr: float | str = scheduled(3e-4)
    """Learning rate of the actor: a number, or a schedule such as "linear(3e-4, 0)"."""
    critic_lr: float | str = scheduled(1e-3)
    """Learning rate of the critics and of the temperature."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards; the replay buffer applies it."""
    batch_size: int = bounded(256, at_least=1)
    """Transitions in one update."""
    tau: float = bounded(0.005, above=0, at_most=1)
    """How far the target critics move to the online ones after each update."""
    temperature: float = bounded(1.0, above=0, finite=True, note="use ddpg or td3 to learn without entropy")
    """Weight of the entropy; the value to start from where it is automatic."""
    auto_temperature: bool = True
    """Move the temperature until the policy has its target entropy."""
    target_entropy: float | None = bounded(None, finite=True)
    """Entropy to hold, in nats. None: minus the number of action coordinates, or `entropy_share` of the most there can be.
    Where an action mask leaves fewer actions, a state has at most `entropy_share` of the most there can be in it."""
    entropy_share: float = bounded(0.3, above=0, at_most=1)
    """Discrete actions: the target entropy of a state as a share of log(number of actions that are open there)."""
    metrics_every: int = bounded(1, at_least=1)
    """Read the metrics of each this many updates; on a GPU, reading them waits for the update."""

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "sac.")

    def entropy_for(self, action: ActionSpec) -> float:
        """The entropy that the automatic temperature holds for `action` where all of it is open."""
        if action.kind != "discrete":
            return -float(action.size) if self.target_entropy is None else self.target_entropy
        most = math.log(action.num_actions)
        if self.target_entropy is None:
            return self.entropy_share * most
        if self.auto_temperature and self.target_entropy >= most > 0.0:
            fix = f"{action.num_actions} actions have at most {most:.4f} nats, so the temperature would rise for ever; use less"
            raise ConfigError("sac.target_entropy", self.target_entropy, fix)
        return self.target_entropy


class SACLearner(ReplayState):
    """Consumes sampled transitions `[B]`, one batch a version; owns actor, critics, their targets and the temperature."""

    seed_name, exploration = "sac", ("explore",)

    config: SACConfig

    def __init__(
        self,
        config: SACConfig,
        actor: SquashedGaussianActor | TeamGaussianActor | CategoricalActor,
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
        # the logarithm is learned, so that no step can make the temperature negative
        self._log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature), device=device))
        self.target_entropy = config.entropy_for(actor.env_spec.action)
        self.version, self._seed = 0, seed
        lrs = schedule.at(config.actor_lr, 0.0), schedule.at(config.critic_lr, 0.0)
        self._actor_adam, self._critic_adam = Adam(actor.parameters(), lr=lrs[0]), Adam(critic.parameters(), lr=lrs[1])
        self._temperature_adam = Adam([self._log_temperature], lr=lrs[1])
        # critics alone have targets: a' in a target is drawn by the present policy, whose noise smooths it already
        self.target_critic = copy.deepcopy(critic).requires_grad_(False)
        self._target = Target(critic, self.target_critic)
        self._nets = {"actor": actor, "critic": critic, "target": self.target_critic}
        self._adams = {"actor": self._actor_adam, "critic": self._critic_adam, "temperature": self._temperature_adam}
        self._generator = torch.Generator(device).manual_seed(make_seed(seed, self.seed_name, self.collective.rank))
        self._params = dict(actor.state_dict())
        self._sizes: Sizes = {}
        self._home = Batch()

    # ----------------------------------------------------------------------------------------------------------- update
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All transitions in one batch `[B]`."""
        batch, self._sizes = merge_transitions(segments, home=self._home, device=self.device, version=self.version)
        self._actor_adam.lr = schedule.at(self.config.actor_lr, progress)
        self._critic_adam.lr = self._temperature_adam.lr = schedule.at(self.config.critic_lr, progress)
        return batch

    def update(self, batch: Batch) -> Update:
        """One step of the critics, the actor, the temperature and the targets; one version. Reads no number in between."""
        numbers, errors = self.step(batch)
        self.version += 1
        metrics = {}
        if self.version % self.config.metrics_every == 0:
            metrics = read_metrics(numbers, self.collective, sums=SUMS, version=self.version)
        return Update(metrics, split_errors(self._sizes, batch["index"], errors))

    def step(self, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
        """The whole update on the device: metrics by name `[]`, and the errors by transition `[B]`."""
        with torch.no_grad():  # a constant to critics and actor: it is moved by its own loss alone
            temperature = self._log_temperature.exp()
        critic = self.critic_loss(batch, temperature)
        norm = self._critic_adam.step(critic.value, max_norm=None, collective=self.collective)
        # The actor learns from the critics as they are now. Only its own weights are moved along this gradient: those of the
        # critics are passed through, and not differentiated.
        actor = self.actor_loss(batch, temperature)
        self._actor_adam.step(actor.value, max_norm=None, collective=self.collective)
        heat = self.temperature_loss(batch, actor.metrics["entropy"])
        if self.config.auto_temperature:
            self._temperature_adam.step(heat.value, max_norm=None, collective=self.collective)
        self._target.follow(self.config.tau)
        self.actor.explore.zero_()  # from the first update on the policy plays, and no longer at random
        losses = {"loss/critic": critic.value, "loss/actor": actor.value, "loss/temperature": heat.value}
        rest = {**critic.metrics, **actor.metrics, **heat.metrics, "temperature": temperature, "grad_norm": norm}
        return {name: x.detach() for name, x in {**losses, **rest}.items()}, critic.error

    # ----------------------------------------------------------------------------------------------------------- losses
    def critic_loss(self, batch: Batch, temperature: Tensor) -> Loss:
        """Each critic's squared error to `r + discount (min_i Q_i(s', a') - temperature log pi(a' | s'))`, a' by the policy,
        Q by the targets."""
        with torch.no_grad():
            target = self.target(batch, temperature)
        if isinstance(self.actor, CategoricalActor):
            values = self.critic.values(batch)
            q = values.gather(-1, batch["action"].expand(len(values), -1).unsqueeze(-1)).squeeze(-1)
        else:
            q = self.critic.q(batch, self.actor.box.normalise(batch["action"]))
        loss = ensemble_td_loss(q, target, weight=batch["weight"], denominator=self._count(batch))
        loss.metrics |= {"td_error": loss.error.mean(), "q": q.detach().mean()}
        return loss

    def target(self, batch: Batch, temperature: Tensor) -> Tensor:
        """The critics' targets. `[B]`"""
        reward, discount = batch["rewards/env"], batch["discount"]
        following = {k: batch["next_" + k] for k in self.actor.env_spec.obs}
        if isinstance(self.actor, CategoricalActor):  # the expectation over actions is a sum, and nothing is drawn
            logprobs = self.actor.logprobs(following, batch.get("next_action_mask"))
            next_q = self.target_critic.values(following)
            return soft_target_discrete(reward, discount, next_q, next_logprobs=logprobs, temperature=temperature)
        # the smaller of two critics (TD3, sec. 4.2): the actor looks for overrated actions, and one critic would confirm them
        action, logprob = self.actor.sample(following, self.draw(len(reward)))
        next_q = self.target_critic.q(following, action)
        return soft_target(reward, discount, next_q, next_logprob=logprob, temperature=temperature)

    def actor_loss(self, batch: Batch, temperature: Tensor) -> Loss:
        """`temperature log pi(a | s) - min_i Q_i(s, a)`; a is a function of the noise, so the gradient passes through Q."""
        count = self._count(batch)
        if isinstance(self.actor, CategoricalActor):
            logprobs = self.actor.logprobs(batch, batch.get("action_mask"))
            with torch.no_grad():
                values = self.critic.values(batch)
            return soft_actor_loss_discrete(values, logprobs=logprobs, temperature=temperature, denominator=count)
        action, logprob = self.actor.sample(batch, self.draw(len(batch["discount"])))
        q = self.critic.q(batch, action)
        return soft_actor_loss(q, logprob=logprob, temperature=temperature, denominator=count)

    def temperature_loss(self, batch: Batch, entropy: Tensor) -> Loss:
        """`temperature (entropy - target entropy)`: above its target, the entropy weighs less."""
        return temperature_loss(self._log_temperature, entropy, target_entropy=self._wanted_entropy(batch))

    def _wanted_entropy(self, batch: Batch) -> Tensor | float:
        """The target entropy, as a mean over this rank's part of the batch, divided by the ranks.

        A policy cannot have more entropy than log(number of open actions), and none at all where one action is left. With a
        target above that, the temperature would rise for ever.
        """
        mask, ranks = batch.get("action_mask"), self.collective.world_size
        if mask is None:
            return self.target_entropy / ranks
        most = self.config.entropy_share * mask.sum(-1).log()
        return most.clamp(max=self.target_entropy).mean() / ranks

    def draw(self, num_rows: int) -> Tensor:
        """Normal noise for `num_rows` actions, from this learner's own generator. `[num_rows, D]`"""
        return torch.randn(num_rows, self.actor.noise_size, generator=self._generator, device=self.device)

    def _count(self, batch: Batch) -> int:
        """Rows of the whole batch: each rank has a part, and sums over its own."""
        return len(batch["discount"]) * self.collective.world_size

    # ------------------------------------------------------------------------------------------------------------ state
    def not_taken(self) -> Sequence[str]:
        return ("the critics", "the temperature", "the optimisers' moments", "the replay memory", BEFORE_UPDATES)

    def state_dict(self) -> State:
        return {**super().state_dict(), "log_temperature": self._log_temperature.detach().clone()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        with torch.no_grad():
            self._log_temperature.copy_(state["log_temperature"])
