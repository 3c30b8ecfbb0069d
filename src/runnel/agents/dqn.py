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
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from runnel.agents.transitions import Sizes, split_errors
from runnel.agents.whole_batch import of_whole_batch
from runnel.core import schedule
from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.protocols import Collective, OneProcess, State, Update
from runnel.core.records import Segment
from runnel.core.resuming import DISCOUNTED, OnResume, may_change, stays
from runnel.core.spaces import EnvSpec
from runnel.losses.td import Slope, categorical_td_loss, huber_td_loss
from runnel.nets.compiled_q import CompiledQ
from runnel.nets.mlp import NetConfig
from runnel.nets.q_nets import QNet
from runnel.ops.categorical import c51_target, hl_gauss_target
from runnel.ops.distributions import mask_logits
from runnel.ops.optimise import Adam, Target, flat_view

METRICS = ("loss/td", "td_error", "q", "grad_norm")
Outputs = tuple[Tensor, Any, Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class DQNConfig:
    """Hyperparameters of DQN."""

    on_resume: ClassVar[OnResume] = (
        may_change("lr", "epsilon", "double", "sigma", "burn_in", "target_every", "target_tau", "max_grad_norm", "huber")
        | stays("gamma", why=DISCOUNTED)
        | stays("eta", why="the priorities in the replay memory were made with it")
        | stays("batch_size", why="batches of that size are on their way")
        | stays("dueling", "head", "num_atoms", "v_min", "v_max", why="what was learned is of that network")
    )

    lr: float | str = 2.5e-4
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = 0.99
    """Discount of future rewards."""
    batch_size: int = 128
    """Transitions in one update; for a recurrent network, sequences of `num_steps` steps."""
    epsilon: float | str = "linear(1, 0.05, 0.2)"
    """Share of random actions: a number, or a schedule over the run."""
    double: bool = True
    """Choose the target's action by the online network (double Q-learning), not by the target network."""
    dueling: bool = False
    """Two networks, for the value of a state and for the advantages of actions (Wang et al. 2016, arXiv:1511.06581)."""
    head: Literal["value", "c51", "hl_gauss"] = "value"
    """value: Q and a Huber loss. c51, hl_gauss: a distribution over `num_atoms` values and a cross-entropy loss."""
    num_atoms: int = 101
    """c51, hl_gauss: values of the distribution."""
    v_min: float = -100.0
    """c51, hl_gauss: the lowest of them; returns below it cannot be told apart."""
    v_max: float = 100.0
    """c51, hl_gauss: the highest of them; returns above it cannot be told apart."""
    sigma: float = 0.75
    """hl_gauss: width of a target's Gaussian, in steps between two values."""
    burn_in: int = 0
    """Recurrent: first steps of a sequence that only bring the state up to date, and are not learned from."""
    eta: float = 0.9
    """Recurrent: a sequence's priority is eta times the largest error of its steps plus 1 - eta times their mean."""
    target_every: int = 125
    """Move the target network each this many updates."""
    target_tau: float = 1.0
    """How far the target network then moves to the online one: 1 copies it."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this global norm."""
    huber: float | None = None
    """Errors beyond this count linearly (Huber loss); None: all are squared. With uniform replay and values much larger than
    this, a linear loss can run away: the few transitions that end an episode weigh no more than the many that do not."""

    def network(self, env_spec: EnvSpec, net: NetConfig, *, seed: int, fused: bool = False) -> QNet:
        """The network that fits these settings."""
        atoms = {"num_atoms": self.num_atoms, "v_min": self.v_min, "v_max": self.v_max} if self.head != "value" else {}
        return QNet(env_spec, net, seed=seed, dueling=self.dueling, fused=fused, **atoms)  # type: ignore[arg-type]

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        schedule.parse(self.lr, "dqn.lr")
        schedule.parse(self.epsilon, "dqn.epsilon")
        for name, least in (("batch_size", 1), ("target_every", 1), ("num_atoms", 2), ("burn_in", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"dqn.{name}", value, f"must be at least {least}")
        if not 0.0 < self.target_tau <= 1.0:
            raise ConfigError("dqn.target_tau", self.target_tau, "must be above 0 and at most 1")
        for name in ("gamma", "eta"):
            if not 0.0 <= (share := getattr(self, name)) <= 1.0:
                raise ConfigError(f"dqn.{name}", share, "must be in [0, 1]")
        if not self.max_grad_norm > 0.0:
            raise ConfigError("dqn.max_grad_norm", self.max_grad_norm, "must be above 0")
        if not -math.inf < self.v_min < self.v_max < math.inf:
            raise ConfigError("dqn.v_max", self.v_max, f"must be finite and above v_min ({self.v_min})")
        if not self.sigma > 0.0:
            raise ConfigError("dqn.sigma", self.sigma, "must be above 0")
        if self.huber is not None and not self.huber > 0.0:
            raise ConfigError("dqn.huber", self.huber, "must be above 0, or None for squared errors")


class DQNLearner:
    """Consumes one batch a version: transitions `[B]`, or sequences `[T, B]`. Owns network, target and optimiser."""

    def __init__(self, config: DQNConfig, net: QNet, *, collective: Collective | None = None, device: str = "cpu") -> None:
        config.check()
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or OneProcess()
        self.version = 0
        self._optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0))
        self._target_net = copy.deepcopy(net)
        self._target = Target(net, self._target_net)
        alone = device == "cpu" and self.collective.world_size == 1
        self._target_vector = flat_view(list(self._target_net.parameters())) if alone else None
        self._params = dict(net.state_dict())
        self._sizes: Sizes = {}
        self._skip = config.burn_in if net.state_spec else 0
        self._epsilon = schedule.at(config.epsilon, 0.0)
        net.epsilon.fill_(self._epsilon)

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All rows in one batch. The exploration rate moves here and is published after the update."""
        self._sizes = {name: [s.num_rows for s in group] for name, group in segments.items()}
        batch = Batch.cat([s.arrays for group in segments.values() for s in group])
        self._optimiser.lr = schedule.at(self.config.lr, progress)
        self._epsilon = schedule.at(self.config.epsilon, progress)
        self.net.epsilon.fill_(self._epsilon)
        return batch if self.device.type == "cpu" else batch.to(self.device)

    def update(self, batch: Batch) -> Update:
        """One step towards `reward + discount Q_target(s', a')`, a' best by Q, or by Q_target without `double`."""
        kernels = self.net.kernels() if self._target_vector is not None else None
        numbers, priority = self._step(batch) if kernels is None else self._compiled_step(kernels, batch)
        self.version += 1
        if self.version % self.config.target_every == 0:
            self._target.follow(self.config.target_tau)
        found = of_whole_batch(numbers, METRICS, self.collective, means=METRICS[1:]).tolist()
        if not math.isfinite(found[0]):
            raise NonFiniteError(self._culprit(batch), self.version)
        metrics = dict(zip(METRICS, found, strict=True)) | {"epsilon": self._epsilon, "lr": self._optimiser.lr}
        return Update(metrics, split_errors(self._sizes, batch["index"], priority))

    def _compiled_step(self, kernels: CompiledQ, batch: Batch) -> tuple[Tensor, Tensor]:
        """`_step` of a small plain network on the CPU, in one call."""
        assert self._target_vector is not None
        c = self.config
        settings: dict[str, Any] = {"double": c.double, "huber": c.huber, "max_norm": c.max_grad_norm}
        return kernels.step(batch, self._target_vector, optimiser=self._optimiser, **settings)

    @torch.no_grad()
    def _step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The whole update on the device: the numbers of `METRICS`, and the priorities. `[4], [B]`"""
        scores, tape, following, chooser, mask = self._sequences(batch) if self.net.state_spec else self._transitions(batch)
        action, reward, discount = (batch[k] for k in ("action", "rewards/env", "discount"))
        if self._skip:
            action, reward, discount = (x[self._skip :] for x in (action, reward, discount))
        best = mask_logits(self.net.expected(chooser), mask).argmax(-1)
        at, at_best = (a[..., None, None].expand(*a.shape, 1, scores.shape[-1]) for a in (action, best))
        out, after = scores.gather(-2, at).squeeze(-2), following.gather(-2, at_best).squeeze(-2)
        slope, q = self._loss(out, after, reward, discount, batch["weight"])
        if not slope.value.is_cuda and not math.isfinite(slope.value.item()):
            raise NonFiniteError(self._culprit(batch), self.version)
        grads = self.net.backward(tape, torch.zeros_like(scores).scatter_(-2, at, slope.grad.view_as(at)))
        norm = self._optimiser.apply(grads, self.config.max_grad_norm, collective=self.collective)
        numbers = torch.stack([slope.value, slope.error.mean(), q.mean(), norm])
        error = slope.error
        return numbers, error if error.dim() == 1 else torch.lerp(error.mean(0), error.amax(0), self.config.eta)

    def _loss(self, out: Tensor, after: Tensor, reward: Tensor, discount: Tensor, weight: Tensor) -> tuple[Slope, Tensor]:
        """Loss and Q `[...]` of the output `[..., N]` at (s, a), given that of the target network at (s', a')."""
        c, support, count = self.config, self.net.support, reward.numel() * self.collective.world_size
        weight, q = weight.expand_as(reward), self.net.expected(out)
        if c.head == "c51":
            wanted = c51_target(after.softmax(-1), reward, discount, support=support)
            return categorical_td_loss(out, wanted, weight=weight, denominator=count), q
        target = torch.addcmul(reward, discount, self.net.expected(after))
        if c.head == "value":
            delta = math.inf if c.huber is None else c.huber
            return huber_td_loss(q, target, weight=weight, denominator=count, delta=delta), q
        wanted = hl_gauss_target(target, support=support, sigma=c.sigma)
        slope = categorical_td_loss(out, wanted, weight=weight, denominator=count)
        return replace(slope, error=(q - target).abs()), q

    def _transitions(self, batch: Batch) -> Outputs:
        """Output at s `[B, A, N]` with its tape; output of the target and of who chooses a' at s'; and the mask at s'."""
        next_obs = {k: batch["next_" + k] for k in self.net.env_spec.obs}
        following = self._target_net.scores(next_obs)
        chooser = self.net.scores(next_obs) if self.config.double else following
        return *self.net.tape(batch), following, chooser, batch.get("next_action_mask")

    def _sequences(self, batch: Batch) -> Outputs:
        """The same for sequences, `[T - burn_in, B, A, N]`, each network with a state of its own."""
        with torch.enable_grad():
            scores, ours, mask = self.net.unroll_batch(batch, burn_in=self.config.burn_in)
        _, following, _ = self._target_net.unroll_batch(batch, burn_in=self.config.burn_in)
        return scores.detach(), scores, following, ours if self.config.double else following, mask

    def _culprit(self, batch: Batch) -> str:
        """What to name when the loss is not finite: data if it is bad, else the loss itself."""
        return next((k for k, x in batch.items() if x.is_floating_point() and not x.isfinite().all()), METRICS[0])

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """Weights and exploration rate: the same tensors at every call, updated in place."""
        return self._params

    def base_params(self) -> Mapping[str, Tensor]:
        """What a start is for: the weights, not the exploration rate, which follows this run's own schedule."""
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
            "target": {k: v.clone() for k, v in self._target_net.state_dict().items()},
            "optimiser": self._optimiser.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self._target_net.load_state_dict(state["target"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.version = state["version"]
