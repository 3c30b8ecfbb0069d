"""Deep Q-learning (Mnih et al. 2015) from replay, with the options of Rainbow (Hessel et al. 2018, arXiv:1710.02298).

Double targets (van Hasselt et al. 2016, arXiv:1509.06461), dueling networks, returns of several steps and priorities (both by
the replay), values as distributions (C51, HL-Gauss), and recurrent networks on sequences with burn-in (R2D2, Kapturowski et
al. 2019). Segments are batches that `data/replay.py` or `data/sequences.py` drew; errors go back to it as priorities.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.agents.base import Sizes, of_whole_batch, split_errors
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.resuming import DISCOUNTED, OnResume, live, may_change, stays
from runnel.core.spaces import EnvSpec
from runnel.core.state import State
from runnel.losses.base import Loss
from runnel.losses.td import categorical_td_loss, huber_td_loss
from runnel.nets.layers import NetConfig
from runnel.nets.optim import Adam, Target
from runnel.nets.q_nets import QNet
from runnel.ops.distributions import mask_logits
from runnel.ops.targets import c51_target, hl_gauss_target

MEANS = ("td_error", "q", "grad_norm")
"""Metrics that are means over this rank's part of the batch, or the same on every rank."""
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


class DQNLearner(LiveConfig):
    """Consumes one batch a version: transitions `[B]`, or sequences `[T, B]`. Owns network, target and optimiser."""

    config: DQNConfig

    def __init__(self, config: DQNConfig, net: QNet, *, collective: Collective | None = None, device: str = "cpu") -> None:
        config.check()
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or SingleProcess()
        self.version = 0
        self.optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0))
        # targets are from a network that stands still for many updates: with the online one, every step towards a target
        # would move the target as well (Mnih et al. 2015)
        self.target_net = copy.deepcopy(net)
        self._target = Target(net, self.target_net)
        self._params = dict(net.state_dict())
        self._sizes: Sizes = {}
        self._epsilon = schedule.at(config.epsilon, 0.0)
        net.epsilon.fill_(self._epsilon)  # a buffer of the network, so that actors get it with the weights

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All rows in one batch. The exploration rate moves here and is published after the update."""
        self._sizes = {name: [s.num_rows for s in group] for name, group in segments.items()}
        batch = Batch.cat([s.arrays for group in segments.values() for s in group])
        self.optimiser.lr = schedule.at(self.config.lr, progress)
        self._epsilon = schedule.at(self.config.epsilon, progress)
        self.net.epsilon.fill_(self._epsilon)
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def update(self, batch: Batch) -> Update:
        """One step towards `reward + discount Q_target(s', a')`, a' best by Q, or by Q_target without `double`."""
        numbers, priority = self.step(batch)
        self.version += 1
        if self.version % self.config.target_every == 0:
            self._target.follow(self.config.target_tau)
        metrics = of_whole_batch(torch.stack(list(numbers.values())), list(numbers), self.collective, means=MEANS)
        if not math.isfinite(metrics["loss/td"]):
            raise NonFiniteError(self._culprit(batch), self.version)
        metrics |= {"epsilon": self._epsilon, "lr": self.optimiser.lr}
        return Update(metrics, split_errors(self._sizes, batch["index"], priority))

    def step(self, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
        """One optimiser step: metrics by name `[]`, and the priority of each row `[B]`."""
        loss = self.loss(batch)
        if not loss.value.is_cuda and not math.isfinite(loss.value.item()):  # on a device: in `update`
            raise NonFiniteError(self._culprit(batch), self.version)
        norm = self.optimiser.step(loss.value, max_norm=self.config.max_grad_norm, collective=self.collective)
        numbers = {"loss/td": loss.value.detach(), **loss.metrics, "grad_norm": norm}
        error = loss.error
        # the priority of a sequence lies between the mean and the largest of its errors (R2D2)
        return numbers, error if error.dim() == 1 else torch.lerp(error.mean(0), error.amax(0), self.config.eta)

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

    def _culprit(self, batch: Batch) -> str:
        """What to name when the loss is not finite: data if it is bad, else the loss itself."""
        return next((k for k, x in batch.items() if x.is_floating_point() and not x.isfinite().all()), "loss/td")

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """Weights and exploration rate: the same tensors at every call, updated in place."""
        return self._params

    def base_params(self) -> Mapping[str, Tensor]:
        """What another run may start from: the weights, not the exploration rate, which follows each run's own schedule."""
        return {name: x for name, x in self._params.items() if name != "epsilon"}

    @torch.no_grad()
    def start_from(self, params: Mapping[str, Tensor]) -> None:
        """Start network and target from the weights of another run."""
        for name, x in self.base_params().items():
            x.copy_(params[name])
        self._target.follow(1.0)

    def not_taken(self) -> Sequence[str]:
        return ("the optimiser's moments", "the replay memory", f"the exploration rate (it begins at {self._epsilon:g})")

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "target": {k: v.clone() for k, v in self.target_net.state_dict().items()},
            "optimiser": self.optimiser.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.target_net.load_state_dict(state["target"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.version = state["version"]


def _pick(scores: Tensor, action: Tensor) -> Tensor:
    """The output at the actions. `[..., A, N], [...] -> [..., N]`"""
    index = action[..., None, None].expand(*action.shape, 1, scores.shape[-1])
    return scores.gather(-2, index).squeeze(-2)
