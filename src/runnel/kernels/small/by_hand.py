"""SAC and TD3 on the CPU with their gradients written out: the chain rule from the losses through the layers, in torch.

At 256 rows and layers of 256 autograd spends a fifth of an update on memory: every gradient lies in a new place, and those of
the weights are joined for Adam. Here each layer writes to the same memory at every update, and the gradient of all weights is
one vector from the start. Stands in for `SACLearner.step` and `TD3Learner.step`, continuous actions and fully connected layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from runnel.agents.sac import SACLearner
from runnel.agents.td3 import TD3Learner
from runnel.core.records import Batch
from runnel.kernels.small.passes import GradientPasses
from runnel.nets.continuous import LOG_STD_BOUNDS, DeterministicActor, QEnsemble, SquashedGaussianActor
from runnel.nets.layers import MLP, Torso
from runnel.nets.optim import Adam
from runnel.ops.distributions import HALF_LOG_TWO_PI, LOG_TWO
from runnel.ops.targets import min_target, soft_target

Answer = tuple[Mapping[str, Tensor], Tensor]


def why_not(learner: SACLearner | TD3Learner) -> str:
    """Why the update of `learner` runs by autograd; empty where it can be done by hand."""
    if type(learner.actor) not in (SquashedGaussianActor, DeterministicActor):
        return "gradients by hand are for continuous actions"
    if type(learner.critic) is not QEnsemble:
        return "the critic is not the stock one"
    for net in (learner.actor, learner.critic):
        if type(net.head) is not MLP or type(net.torso) is not Torso or net.torso.convolves:
            return "gradients by hand are for fully connected layers"
        if not GradientPasses.fit(net.head):
            return "gradients by hand are for hidden layers of tanh or relu"
    if any(type(adam) is not Adam for adam in (learner._actor_adam, learner._critic_adam)):
        return "the optimiser is not the stock Adam"
    return ""


class _Critics:
    """Critics and their targets, each with passes of its own."""

    def __init__(self, learner: SACLearner | TD3Learner) -> None:
        actor = learner.actor
        assert isinstance(actor, SquashedGaussianActor | DeterministicActor)
        self._learner, self._box = learner, actor.box
        self.online, self._target = GradientPasses(learner.critic.head), GradientPasses(learner.target_critic.head)

    def target(self, following: Mapping[str, Tensor], action: Tensor) -> Tensor:
        """Q of the target critics. `[S, B]`"""
        features = self._learner.target_critic.torso(following)
        return self._target.forward(torch.cat([features, action], dim=-1)).squeeze(-1)

    def q(self, batch: Batch, action: Tensor, *, copies: int = 0) -> Tensor:
        """Q of the online critics, good until the next pass. `[S, B]`"""
        features = self._learner.critic.torso(batch)
        return self.online.forward(torch.cat([features, action], dim=-1), copies=copies).squeeze(-1)

    def step(self, batch: Batch, target: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """A step along `ensemble_td_loss`, dL/dq = weight (q - target) / count: metrics, and the errors by transition."""
        learner, count = self._learner, len(target)
        q = self.q(batch, self._box.normalise(batch["action"]))
        mean, error = q.mean(), q - target
        grad = error * (batch["weight"] / count)
        loss, errors = 0.5 * (error * grad).sum(), error.abs().mean(0)
        flat = self.online.backward(grad.unsqueeze(-1))
        norm = learner._critic_adam.apply([flat], None, collective=learner.collective)
        return {"loss/critic": loss, "td_error": errors.mean(), "q": mean, "grad_norm": norm}, errors


@dataclass
class _Squashed:
    """Actions `[B, D]` and log-densities `[B]`; `spread` (std z) and `free` (log std is within its bounds) for the gradient."""

    action: Tensor
    logprob: Tensor
    spread: Tensor
    free: Tensor

    @classmethod
    def of(cls, scores: Tensor, z: Tensor) -> _Squashed:
        """`ops.distributions.squashed_gaussian` of a network's output (mean, log std). `[B, 2 D], [B, D]`"""
        mean, raw = scores.chunk(2, dim=-1)
        log_std = raw.clamp(*LOG_STD_BOUNDS)
        spread = log_std.exp().mul_(z)
        u = mean + spread
        terms = softplus(u * -2.0).add_(u).mul_(2.0).sub_(log_std).addcmul_(z, z, value=-0.5)
        logprob = terms.sum(-1).sub_(z.shape[-1] * (HALF_LOG_TWO_PI + 2.0 * LOG_TWO))
        return cls(u.tanh_(), logprob, spread, raw == log_std)

    def halves(self) -> tuple[_Squashed, _Squashed]:
        """The first and the last half of the rows."""
        first, last = zip(*(x.chunk(2) for x in (self.action, self.logprob, self.spread, self.free)), strict=True)
        return _Squashed(*first), _Squashed(*last)

    def backward(self, to_action: Tensor, to_logprob: Tensor) -> Tensor:
        """The gradient of the network's output from those of action and log-density. `[B, D], [] -> [B, 2 D]`

        d u = to_action (1 - a^2) + 2 a to_logprob,   d mean = d u,   d log std = d u std z - to_logprob
        """
        to_u = torch.ops.aten.tanh_backward(to_action, self.action).add_(self.action * (2.0 * to_logprob))
        return torch.cat([to_u, (to_u * self.spread).sub_(to_logprob).mul_(self.free)], dim=-1)


def sac_step(learner: SACLearner) -> Callable[[Batch], Answer]:
    """`SACLearner.step` by hand."""
    net = learner.actor
    assert isinstance(net, SquashedGaussianActor), "others are refused before (`why_not`)"
    actor, critics = GradientPasses(net.head), _Critics(learner)

    @torch.no_grad()
    def step(batch: Batch) -> Answer:
        count, obs = len(batch["discount"]), net.env_spec.obs
        temperature = learner._log_temperature.exp()
        following = {k: batch["next_" + k] for k in obs}
        # the actor at s' and at s in one pass: its weights are the same for both
        features = net.torso({k: torch.cat([following[k], batch[k]]) for k in obs})
        z = torch.cat([learner.draw(count), learner.draw(count)])
        after, policy = _Squashed.of(actor.forward(features)[0], z).halves()
        target = soft_target(
            batch["rewards/env"],
            batch["discount"],
            critics.target(following, after.action),
            next_logprob=after.logprob,
            temperature=temperature,
        )
        numbers, errors = critics.step(batch, target)
        q = critics.q(batch, policy.action)
        best, which = q.min(0)
        entropy = -policy.logprob.sum() / count
        loss = -best.sum() / count - temperature * entropy
        to_q = torch.zeros_like(q).scatter_(0, which.unsqueeze(0), -1.0 / count)
        to_action = critics.online.to_input(to_q.unsqueeze(-1), policy.action.shape[-1])
        to_scores = policy.backward(to_action, temperature / count)
        learner._actor_adam.apply([actor.backward(to_scores.unsqueeze(0))], None, collective=learner.collective)
        with torch.enable_grad():
            heat = learner.temperature_loss(batch, entropy)
            if learner.config.auto_temperature:
                learner._temperature_adam.step(heat.value, max_norm=None, collective=learner.collective)
        learner._target.follow(learner.config.tau)
        learner.actor.explore.zero_()
        rest = {"loss/actor": loss, "loss/temperature": heat.value.detach(), "entropy": entropy, "temperature": temperature}
        return {**numbers, **rest}, errors

    return step


def td3_step(learner: TD3Learner) -> Callable[[Batch, bool], Answer]:
    """`TD3Learner.step` by hand."""
    actor, critics = GradientPasses(learner.actor.head), _Critics(learner)

    @torch.no_grad()
    def step(batch: Batch, move_actor: bool) -> Answer:
        numbers, errors = critics.step(batch, _target(learner, critics, batch))
        if move_actor:
            count = len(batch["discount"])
            action = actor.forward(learner.actor.torso(batch))[0].tanh()
            q = critics.q(batch, action, copies=1)
            numbers["loss/actor"] = -q.sum() / count
            to_action = critics.online.to_input(torch.full_like(q, -1.0 / count).unsqueeze(-1), action.shape[-1])
            to_scores = torch.ops.aten.tanh_backward(to_action, action)
            learner._actor_adam.apply([actor.backward(to_scores.unsqueeze(0))], None, collective=learner.collective)
            for follower in learner._targets:
                follower.follow(learner.config.tau)
        learner.actor.explore.zero_()
        return numbers, errors

    return step


def _target(learner: TD3Learner, critics: _Critics, batch: Batch) -> Tensor:
    """`TD3Learner.target`, with the target critics' own passes."""
    c, following = learner.config, {k: batch["next_" + k] for k in learner.actor.env_spec.obs}
    action = learner.target_actor.action(following)
    if c.target_noise:
        noise = torch.randn(action.shape, generator=learner.generators[0]) * c.target_noise
        action = (action + noise.clamp_(-c.target_noise_clip, c.target_noise_clip)).clamp_(-1.0, 1.0)
    return min_target(batch["rewards/env"], batch["discount"], critics.target(following, action))
