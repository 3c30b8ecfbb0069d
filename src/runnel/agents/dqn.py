"""Deep Q-learning (Mnih et al. 2015) with double targets (van Hasselt et al. 2016, arXiv:1509.06461) from replay.

Segments are batches of transitions that `data/replay.py` sampled; the absolute errors go back to it as priorities.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core import schedule
from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, NonFiniteError
from runnel.core.protocols import Collective, OneProcess, State, Update
from runnel.core.records import Segment
from runnel.losses.value import td_loss
from runnel.nets.q_nets import QNet
from runnel.ops.distributions import mask_logits
from runnel.ops.optimise import Adam


@dataclass(frozen=True)
class DQNConfig:
    """Hyperparameters of DQN."""

    lr: float | str = 2.3e-3
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = 0.99
    """Discount of future rewards."""
    batch_size: int = 64
    """Transitions in one update."""
    epsilon: float | str = "linear(1, 0.04, 0.16)"
    """Share of random actions: a number, or a schedule over the run."""
    double: bool = True
    """Choose the target's action by the online network (double Q-learning), not by the target network."""
    target_every: int = 32
    """Move the target network each this many updates."""
    target_tau: float = 1.0
    """How far the target network then moves to the online one: 1 copies it."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this global norm."""

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        schedule.parse(self.lr, "dqn.lr")
        schedule.parse(self.epsilon, "dqn.epsilon")
        for name in ("batch_size", "target_every"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"dqn.{name}", value, "must be at least 1")
        if not 0.0 < self.target_tau <= 1.0:
            raise ConfigError("dqn.target_tau", self.target_tau, "must be above 0 and at most 1")
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError("dqn.gamma", self.gamma, "must be in [0, 1]")


class DQNLearner:
    """Consumes sampled transitions `[B]`, one batch a version; owns the network, its target and the optimiser."""

    def __init__(self, config: DQNConfig, net: QNet, *, collective: Collective | None = None, device: str = "cpu") -> None:
        config.check()
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or OneProcess()
        self.version = 0
        self._target = copy.deepcopy(net).requires_grad_(False)
        self._optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0))
        self._params = dict(net.state_dict())
        self._sizes: dict[str, list[int]] = {}
        net.epsilon.fill_(schedule.at(config.epsilon, 0.0))

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All transitions in one batch `[B]`. The exploration rate moves here and is published after the update."""
        self._sizes = {name: [s.num_rows for s in group] for name, group in segments.items()}
        batch = Batch.cat([s.arrays for group in segments.values() for s in group]).to(self.device)
        for key in (*batch.under("obs"), *batch.under("next_obs"), "rewards/env"):
            if batch[key].is_floating_point() and not batch[key].isfinite().all():
                raise NonFiniteError(key, self.version)
        self._optimiser.lr = schedule.at(self.config.lr, progress)
        self.net.epsilon.fill_(schedule.at(self.config.epsilon, progress))
        return batch

    def update(self, batch: Batch) -> Update:
        """One step on the Huber loss of `r + gamma (1 - terminated) Q_target(s', a') - Q(s, a)`."""
        target = self._targets(batch)
        values = self.net.q(batch)
        q = values.gather(-1, batch["action"].unsqueeze(-1)).squeeze(-1)
        count = len(q) * self.collective.world_size
        loss = td_loss(q, target, weight=batch["weight"], denominator=count)
        if not math.isfinite(loss.value.item()):
            raise NonFiniteError("loss/td", self.version)
        norm = self._optimiser.step(loss.value, max_norm=self.config.max_grad_norm, collective=self.collective)
        self.version += 1
        self._move_target()
        metrics = {
            "loss/td": loss.value.item(),
            "td_error": loss.metrics["td_error"].item(),
            "q": q.mean().item(),
            "grad_norm": norm.item(),
            "epsilon": self.net.epsilon.item(),
            "lr": self._optimiser.lr,
        }
        return Update(metrics, self._feedback(batch["index"], (q - target).detach().abs()))

    @torch.no_grad()
    def _targets(self, batch: Batch) -> Tensor:
        """`r + gamma (1 - terminated) Q_target(s', a')`, a' best by Q, or by Q_target without `double`. `[B]`"""
        following = {k: batch["next_" + k] for k in self.net.env_spec.obs}
        values = self._target.q(following)
        scores = self.net.q(following) if self.config.double else values
        action = mask_logits(scores, batch.get("next_action_mask")).argmax(-1, keepdim=True)
        bootstrap = values.gather(-1, action).squeeze(-1).masked_fill(batch["terminated"], 0.0)
        return batch["rewards/env"] + self.config.gamma * bootstrap

    @torch.no_grad()
    def _move_target(self) -> None:
        if self.version % self.config.target_every == 0:
            for old, new in zip(self._target.parameters(), self.net.parameters(), strict=True):
                old.lerp_(new, self.config.target_tau)

    def _feedback(self, index: Tensor, priority: Tensor) -> dict[str, list[Mapping[str, Tensor]]]:
        """One mapping per segment: absolute error (`priority`) by transition (`index`, copied: its memory goes back)."""
        sizes = [n for group in self._sizes.values() for n in group]
        parts = zip(torch.split(index.clone(), sizes), torch.split(priority, sizes), strict=True)
        words: list[Mapping[str, Tensor]] = [{"index": i, "priority": p} for i, p in parts]
        return {name: [words.pop(0) for _ in group] for name, group in self._sizes.items()}

    def params(self) -> Mapping[str, Tensor]:
        """Weights and exploration rate: the same tensors at every call, updated in place."""
        return self._params

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "target": {k: v.clone() for k, v in self._target.state_dict().items()},
            "optimiser": self._optimiser.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self._target.load_state_dict(state["target"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.version = state["version"]
