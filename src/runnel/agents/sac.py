"""Soft actor-critic (Haarnoja et al. 2018, arXiv:1812.05905) from replay, for continuous and for discrete actions.

An update is three steps: the critics towards `r + discount (min Q_target(s', a') - temperature log pi(a' | s'))`, the actor
towards actions that the critics value and that keep its entropy up, and the temperature towards a set entropy. Discrete
actions (Christodoulou 2019, arXiv:1910.07207) take expectations where continuous ones take samples. Losses and their
gradients are in `losses/actor.py`, targets in `ops/targets.py`, the policy in `ops/squashed.py`, networks in
`nets/continuous.py`; a network gives its output and a tape, from which it makes its gradients.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from runnel.agents.transitions import BEFORE_UPDATES, Sizes, merge_transitions, split_errors
from runnel.agents.whole_batch import of_whole_batch
from runnel.core import schedule
from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.protocols import Collective, OneProcess, State, Update
from runnel.core.records import Segment
from runnel.core.resuming import DISCOUNTED, OnResume, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.spaces import ActionSpec
from runnel.kernels.graphs import Captured
from runnel.losses.actor import ActorSlope, ensemble_td_loss, soft_actor_loss, soft_actor_loss_discrete, temperature_loss
from runnel.losses.td import Slope
from runnel.nets.continuous import CategoricalActor, QEnsemble, SquashedGaussianActor
from runnel.ops.optimise import Adam, Target
from runnel.ops.squashed import squash_backward
from runnel.ops.targets import soft_target, soft_target_discrete

METRICS = ("loss/critic", "loss/actor", "loss/temperature", "td_error", "q", "entropy", "temperature", "grad_norm")


@dataclass(frozen=True)
class SACConfig:
    """Hyperparameters of SAC. The defaults are those with which CleanRL reports MuJoCo tasks at a million steps."""

    on_resume: ClassVar[OnResume] = (
        may_change("actor_lr", "critic_lr", "tau", "auto_temperature", "target_entropy", "entropy_share", "metrics_every")
        | stays("gamma", why=DISCOUNTED)
        | stays("batch_size", why="batches of that size are on their way")
        | stays("temperature", why="it is where the temperature started; the checkpoint has what it is now")
    )

    actor_lr: float | str = 3e-4
    """Learning rate of the actor: a number, or a schedule such as "linear(3e-4, 0)"."""
    critic_lr: float | str = 1e-3
    """Learning rate of the critics and of the temperature."""
    gamma: float = 0.99
    """Discount of future rewards; the replay buffer applies it."""
    batch_size: int = 256
    """Transitions in one update."""
    tau: float = 0.005
    """How far the target critics move to the online ones after each update."""
    temperature: float = 1.0
    """Weight of the entropy; the value to start from where it is automatic."""
    auto_temperature: bool = True
    """Move the temperature until the policy has its target entropy."""
    target_entropy: float | None = None
    """Entropy to hold, in nats. None: minus the number of action coordinates, or `entropy_share` of the most there can be.
    Where an action mask leaves fewer actions, no state is asked for more than that share of its own most."""
    entropy_share: float = 0.3
    """Discrete actions: the target entropy of a state as a share of log(number of actions that are open there)."""
    metrics_every: int = 1
    """Read the metrics of each this many updates; on a GPU, reading them waits for the update."""

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        schedule.parse(self.actor_lr, "sac.actor_lr")
        schedule.parse(self.critic_lr, "sac.critic_lr")
        for name in ("batch_size", "metrics_every"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"sac.{name}", value, "must be at least 1")
        for name in ("tau", "entropy_share"):
            if not 0.0 < (value := getattr(self, name)) <= 1.0:
                raise ConfigError(f"sac.{name}", value, "must be above 0 and at most 1")
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError("sac.gamma", self.gamma, "must be in [0, 1]")
        if self.target_entropy is not None and not math.isfinite(self.target_entropy):
            raise ConfigError("sac.target_entropy", self.target_entropy, "must be a finite number, or None")
        if not 0.0 < self.temperature < math.inf:
            raise ConfigError("sac.temperature", self.temperature, "must be above 0; use ddpg or td3 to learn without entropy")

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


class SACLearner:
    """Consumes sampled transitions `[B]`, one batch a version; owns actor, critics, their targets and the temperature."""

    own_state: tuple[str, ...] = ("generator",)

    def __init__(
        self,
        config: SACConfig,
        actor: SquashedGaussianActor | CategoricalActor,
        critic: QEnsemble,
        *,
        seed: int,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        config.check()
        self.config, self.device = config, torch.device(device)
        self.actor, self.critic = actor.to(device), critic.to(device)
        self.collective: Collective = collective or OneProcess()
        self._log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature), device=device))
        self.target_entropy = config.entropy_for(actor.env_spec.action)
        self.version, self._seed = 0, seed
        lrs = schedule.at(config.actor_lr, 0.0), schedule.at(config.critic_lr, 0.0)
        self._actor_adam, self._critic_adam = Adam(actor.parameters(), lr=lrs[0]), Adam(critic.parameters(), lr=lrs[1])
        self._temperature_adam = Adam([self._log_temperature], lr=lrs[1])
        self._target_critic = copy.deepcopy(critic).requires_grad_(False)
        self._target = Target(critic, self._target_critic)
        self._generator = torch.Generator(device).manual_seed(make_seed(seed, "sac", self.collective.rank))
        self._params = dict(actor.state_dict())
        self._sizes: Sizes = {}
        self._home = Batch()
        self._captured = Captured(self._step, generators=(self._generator,), name="an update of SAC")

    # ----------------------------------------------------------------------------------------------------------- update
    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All transitions in one batch `[B]`."""
        batch, self._sizes = merge_transitions(segments, home=self._home, device=self.device, version=self.version)
        self._actor_adam.lr = schedule.at(self.config.actor_lr, progress)
        self._critic_adam.lr = self._temperature_adam.lr = schedule.at(self.config.critic_lr, progress)
        return batch

    def update(self, batch: Batch) -> Update:
        """One step of the critics, the actor, the temperature and the targets; one version. Reads no number in between."""
        step = self._captured if self.collective.world_size == 1 else self._step  # a graph cannot wait for other ranks
        numbers, errors = step(batch)
        self.version += 1
        metrics = {}
        if self.version % self.config.metrics_every == 0:
            numbers = of_whole_batch(numbers, METRICS, self.collective, means=("td_error", "q", "temperature", "grad_norm"))
            metrics = dict(zip(METRICS, numbers.tolist(), strict=True))
            for name in METRICS[:3]:
                if not math.isfinite(metrics[name]):
                    raise NonFiniteError(name, self.version)
        return Update(metrics, split_errors(self._sizes, batch["index"], errors))

    @torch.no_grad()
    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The whole update on the device: the numbers of `METRICS` and the errors by transition. `[8], [B]`"""
        temperature = self._log_temperature.exp()
        step = self._step_continuous if isinstance(self.actor, SquashedGaussianActor) else self._step_discrete
        critic, q, norm, actor = step(batch, temperature, len(batch["discount"]) * self.collective.world_size)
        heat = temperature_loss(temperature, actor.entropy, target_entropy=self._wanted_entropy(batch))
        if self.config.auto_temperature:
            self._temperature_adam.follow([heat.value.clone()], collective=self.collective)
        self._target.follow(self.config.tau)
        self.actor.explore.zero_()
        losses = critic.value, actor.value, heat.value
        return torch.stack([*losses, critic.error.mean(), q, actor.entropy, temperature, norm]), critic.error

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

    def _step_continuous(self, batch: Batch, temperature: Tensor, count: int) -> tuple[Slope, Tensor, Tensor, ActorSlope]:
        """Critics, then actor: their losses, and of the critics the mean of Q and the norm of the gradient.

        The actor's step is the chain rule from its loss through the critics to the action, and from there to the actor.
        """
        assert isinstance(self.actor, SquashedGaussianActor)
        following = {k: batch["next_" + k] for k in self.actor.env_spec.obs}
        shape = 2 * len(batch["discount"]), self.actor.noise_size
        both, tape = self.actor.sample(following, batch, torch.randn(shape, generator=self._generator, device=self.device))
        after, policy = both.halves()
        next_q, _ = self._target_critic.q(following, after.action)
        target = soft_target(
            batch["rewards/env"], batch["discount"], next_q, next_logprob=after.logprob, temperature=temperature
        )
        q, given = self.critic.q(batch, self.actor.box.normalise(batch["action"]))
        mean = q.mean()  # before another pass writes over it
        critic = ensemble_td_loss(q, target, weight=batch["weight"], denominator=count)
        norm = self._critic_adam.apply(self.critic.grads(given, critic.grad.unsqueeze(-1)), None, collective=self.collective)
        q, judged = self.critic.q(batch, policy.action)
        actor = soft_actor_loss(q, logprob=policy.logprob, temperature=temperature, denominator=count)
        to_action = self.critic.input_grad(judged, actor.to_q.unsqueeze(-1), policy.action.shape[-1])
        to_scores = squash_backward(policy, to_action=to_action, to_logprob=actor.to_policy)
        self._actor_adam.follow(self.actor.grads(tape, to_scores.unsqueeze(0)), collective=self.collective)
        return critic, mean, norm, actor

    def _step_discrete(self, batch: Batch, temperature: Tensor, count: int) -> tuple[Slope, Tensor, Tensor, ActorSlope]:
        """The same where every action's value is known, so that nothing has to pass through the critics."""
        assert isinstance(self.actor, CategoricalActor)
        following = {k: batch["next_" + k] for k in self.actor.env_spec.obs}
        logprobs, _ = self.actor.logprobs(following, batch.get("next_action_mask"))
        next_q, _ = self._target_critic.values(following)
        target = soft_target_discrete(
            batch["rewards/env"], batch["discount"], next_q, next_logprobs=logprobs, temperature=temperature
        )
        values, given = self.critic.values(batch)
        taken = batch["action"].expand(len(values), -1).unsqueeze(-1)
        q = values.gather(-1, taken).squeeze(-1)
        critic = ensemble_td_loss(q, target, weight=batch["weight"], denominator=count)
        to_values = torch.zeros_like(values).scatter_(-1, taken, critic.grad.unsqueeze(-1))
        norm = self._critic_adam.apply(self.critic.grads(given, to_values), None, collective=self.collective)
        logprobs, tape = self.actor.logprobs(batch, batch.get("action_mask"))
        values, _ = self.critic.values(batch)
        actor = soft_actor_loss_discrete(values, logprobs=logprobs, temperature=temperature, denominator=count)
        self._actor_adam.follow(self.actor.grads(tape, actor.to_policy.unsqueeze(0)), collective=self.collective)
        return critic, q.mean(), norm, actor

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """The actor's weights and its exploration flag: the same tensors at every call, updated in place."""
        return self._params

    def base_params(self) -> Mapping[str, Tensor]:
        """What a start is for: the actor's weights, not its exploration flag."""
        return {name: x for name, x in self._params.items() if name != "explore"}

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Start the actor, which has no target, from the weights of another run."""
        for name, x in self.base_params().items():
            x.copy_(params[name])

    def not_taken(self) -> Sequence[str]:
        return ("the critics", "the temperature", "the optimisers' moments", "the replay memory", BEFORE_UPDATES)

    def reseed(self, version: int) -> None:
        """A rank that joins at `version` draws noise of its own."""
        self._generator.manual_seed(make_seed(self._seed, "sac", self.collective.rank, version))

    def state_dict(self) -> State:
        nets = {"actor": self.actor, "critic": self.critic, "target": self._target_critic}
        adams = {"actor": self._actor_adam, "critic": self._critic_adam, "temperature": self._temperature_adam}
        return {
            "nets": {name: {k: v.clone() for k, v in net.state_dict().items()} for name, net in nets.items()},
            "adams": {name: adam.state_dict() for name, adam in adams.items()},
            "log_temperature": self._log_temperature.detach().clone(),
            "generator": self._generator.get_state(),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        for name, net in (("actor", self.actor), ("critic", self.critic), ("target", self._target_critic)):
            net.load_state_dict(state["nets"][name])
        adams = {"actor": self._actor_adam, "critic": self._critic_adam, "temperature": self._temperature_adam}
        for name, adam in adams.items():
            adam.load_state_dict(state["adams"][name])
        with torch.no_grad():
            self._log_temperature.copy_(state["log_temperature"])
        self._generator.set_state(torch.as_tensor(state["generator"]).cpu())
        self.version = state["version"]
