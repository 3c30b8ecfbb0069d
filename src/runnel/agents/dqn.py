"""Deep Q-learning (Mnih et al. 2015) from replay, with the options of Rainbow (Hessel et al. 2018, arXiv:1710.02298).

Double targets (van Hasselt et al. 2016, arXiv:1509.06461), dueling networks, returns of several steps and priorities (both by
the replay), values as distributions (C51, HL-Gauss), and recurrent networks on sequences with burn-in (R2D2, Kapturowski et
al. 2019). Segments are batches that `data/replay.py` or `data/sequences.py` drew; errors go back to it as priorities.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.agents.q_learning import QLearner
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import DISCOUNTED, OnResume, live, may_change, stays
from runnel.core.spaces import EnvSpec
from runnel.losses.base import Loss
from runnel.losses.td import categorical_td_loss, huber_td_loss
from runnel.nets.layers import NetConfig
from runnel.nets.q_nets import QNet
from runnel.ops.distributions import mask_logits
from runnel.ops.targets import c51_target, hl_gauss_target

Outputs = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class DQNConfig:
    """Hyperparameters of DQN."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "epsilon", "sigma", "target_every", "target_tau", "max_grad_norm", "huber")
        | may_change("double", "burn_in")
        | stays("gamma", why=DISCOUNTED)
        | stays("eta", why="the priorities in the replay memory were made with it")
        | stays("batch_size", why="batches of that size are on their way")
        | stays("dueling", "head", "num_atoms", "v_min", "v_max", why="what was learned is of that network")
    )

    lr: float | str = scheduled(2.5e-4)
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards."""
    batch_size: int = bounded(128, at_least=1)
    """Transitions in one update; for a recurrent network, sequences of `num_steps` steps."""
    epsilon: float | str = scheduled("linear(1, 0.05, 0.2)")
    """Share of random actions: a number, or a schedule over the run."""
    double: bool = True
    """Choose the target's action by the online network (double Q-learning), not by the target network."""
    dueling: bool = False
    """Two networks, for the value of a state and for the advantages of actions (Wang et al. 2016, arXiv:1511.06581)."""
    head: Literal["value", "c51", "hl_gauss"] = "value"
    """value: Q and a Huber loss. c51, hl_gauss: a distribution over `num_atoms` values and a cross-entropy loss."""
    num_atoms: int = bounded(101, at_least=2)
    """c51, hl_gauss: values of the distribution."""
    v_min: float = bounded(-100.0, finite=True)
    """c51, hl_gauss: the lowest of them; returns below it cannot be told apart."""
    v_max: float = bounded(100.0, finite=True)
    """c51, hl_gauss: the highest of them; returns above it cannot be told apart."""
    sigma: float = bounded(0.75, above=0)
    """hl_gauss: width of a target's Gaussian, in steps between two values."""
    burn_in: int = bounded(0, at_least=0)
    """Recurrent: first steps of a sequence that only bring the state up to date, and are not learned from."""
    eta: float = bounded(0.9, at_least=0, at_most=1)
    """Recurrent: a sequence's priority is eta times the largest error of its steps plus 1 - eta times their mean."""
    target_every: int = bounded(125, at_least=1)
    """Move the target network each this many updates."""
    target_tau: float = bounded(1.0, above=0, at_most=1)
    """How far the target network then moves to the online one: 1 copies it."""
    max_grad_norm: float = bounded(10.0, above=0)
    """Gradients are scaled down to this global norm."""
    huber: float | None = bounded(None, above=0)
    """Errors beyond this count linearly (Huber loss); None: all are squared. With uniform replay and values much larger than
    this, a linear loss can run away: the few transitions that end an episode weigh no more than the many that do not."""

    def network(self, env_spec: EnvSpec, net: NetConfig, *, seed: int) -> QNet:
        """The network that fits these settings."""
        if self.head == "value":
            return QNet(env_spec, net, seed=seed, dueling=self.dueling)
        atoms = self.num_atoms
        return QNet(env_spec, net, seed=seed, dueling=self.dueling, num_atoms=atoms, v_min=self.v_min, v_max=self.v_max)

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "dqn.")
        if not self.v_min < self.v_max:
            raise ConfigError("dqn.v_max", self.v_max, f"must be above v_min ({self.v_min})")


class DQNLearner(QLearner):
    """Consumes one batch a version: transitions `[B]`, or sequences `[T, B]`."""

    config: DQNConfig
    net: QNet
    target_net: QNet

    def __init__(self, config: DQNConfig, net: QNet, *, collective: Collective | None = None, device: str = "cpu") -> None:
        config.check()
        super().__init__(config, net, collective=collective, device=device)

    def loss(self, batch: Batch) -> Loss:
        """The loss of the output at (s, a) against the target at s'. With sequences all are `[T - burn_in, B]`, else `[B]`."""
        scores, following, chooser, mask = self._sequences(batch) if self.net.state_spec else self._transitions(batch)
        action, reward, discount = (batch[k][-len(scores) :] for k in ("action", "rewards/env", "discount"))
        with torch.no_grad():
            # double Q-learning: the online network chooses a' and the target network values it, so that noise which makes an
            # action look best does not also make it look valuable
            best = mask_logits(self.net.expected(chooser), mask).argmax(-1)
            after = _pick(following, best)
        out = _pick(scores, action)
        # prioritised replay draws large errors more often than they occur; `weight` undoes that bias
        loss = self.td_loss(out, after, reward, discount, weight=batch["weight"].expand_as(reward))
        loss.metrics |= {"td_error": loss.error.mean(), "q": self.net.expected(out.detach()).mean()}
        return loss

    def td_loss(self, out: Tensor, after: Tensor, reward: Tensor, discount: Tensor, *, weight: Tensor) -> Loss:
        """The loss of the output `[..., N]` at (s, a), given that of the target network at (s', a'); all others `[...]`."""
        c, support, count = self.config, self.net.support, reward.numel() * self.collective.world_size
        if c.head == "c51":
            wanted = c51_target(after.softmax(-1), reward, discount, support=support)
            return categorical_td_loss(out, wanted, weight=weight, denominator=count)
        target = torch.addcmul(reward, discount, self.net.expected(after))
        if c.head == "value":
            delta = math.inf if c.huber is None else c.huber
            return huber_td_loss(self.net.expected(out), target, weight=weight, denominator=count, delta=delta)
        wanted = hl_gauss_target(target, support=support, sigma=c.sigma)
        loss = categorical_td_loss(out, wanted, weight=weight, denominator=count)
        return replace(loss, per_row=(self.net.expected(out.detach()) - target).abs())

    def _transitions(self, batch: Batch) -> Outputs:
        """Output at s; at s' outputs of the target network and of the one that chooses a'; mask at s'. `[B, A, N]`, `[B, A]`"""
        next_obs = {k: batch["next_" + k] for k in self.net.env_spec.obs}
        with torch.no_grad():
            following = self.target_net.scores(next_obs)
            chooser = self.net.scores(next_obs) if self.config.double else following
        return self.net.scores(batch), following, chooser, batch.get("next_action_mask")

    def _sequences(self, batch: Batch) -> Outputs:
        """The same for sequences, `[T - burn_in, B, A, N]`, each network with a state of its own."""
        scores, ours, mask = self.net.unroll_batch(batch, burn_in=self.config.burn_in)
        with torch.no_grad():
            _, following, _ = self.target_net.unroll_batch(batch, burn_in=self.config.burn_in)
        return scores, following, ours if self.config.double else following, mask


def _pick(scores: Tensor, action: Tensor) -> Tensor:
    """The output at the actions. `[..., A, N], [...] -> [..., N]`"""
    index = action[..., None, None].expand(*action.shape, 1, scores.shape[-1])
    return scores.gather(-2, index).squeeze(-2)
