"""What learners of action values share: one optimiser, a target network, an exploration rate, batches from replay.

A learner of a kind says what its loss is: `agents/dqn.py` for one agent, `agents/qmix.py` for a team.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from runnel.agents.base import Sizes, of_whole_batch, split_errors
from runnel.core import schedule
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import NonFiniteError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.state import State
from runnel.losses.base import Loss
from runnel.nets.optim import Adam, Target

MEANS = ("td_error", "q", "grad_norm")
"""Metrics that are means over this rank's part of the batch, or the same on every rank."""
_RATE = "epsilon"


class QSettings(Protocol):
    """The settings that every learner of action values has."""

    @property
    def lr(self) -> float | str: ...

    @property
    def epsilon(self) -> float | str: ...

    @property
    def target_every(self) -> int: ...

    @property
    def target_tau(self) -> float: ...

    @property
    def max_grad_norm(self) -> float: ...

    @property
    def eta(self) -> float: ...


class QLearner(LiveConfig, ABC):
    """Consumes one batch a version: transitions `[B]`, or sequences `[T, B]`. Owns network, target and optimiser."""

    def __init__(self, config: QSettings, net: nn.Module, *, collective: Collective | None, device: str) -> None:
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or SingleProcess()
        self.version = 0
        self.optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0))
        # targets are from a network that stands still for many updates: with the online one, every step towards a target
        # would move the target as well (Mnih et al. 2015)
        self.target_net = copy.deepcopy(net)
        self._target = Target(net, self.target_net)
        self._params = dict(net.state_dict())
        self._rates = [x for name, x in self._params.items() if _is_rate(name)]
        self._sizes: Sizes = {}
        self._explore(schedule.at(config.epsilon, 0.0))

    def _explore(self, rate: float) -> None:
        """Set the exploration rate: buffers of the network, so that actors get it with the weights."""
        self._epsilon = rate
        for x in self._rates:
            x.fill_(rate)

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All rows in one batch. The exploration rate moves here and is published after the update."""
        self._sizes = {name: [s.num_rows for s in group] for name, group in segments.items()}
        batch = Batch.cat([s.arrays for group in segments.values() for s in group])
        self.optimiser.lr = schedule.at(self.config.lr, progress)
        self._explore(schedule.at(self.config.epsilon, progress))
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

    @abstractmethod
    def loss(self, batch: Batch) -> Loss:
        """The loss of a batch, with the error of each row `[B]`, or of each step of sequences `[T, B]`."""

    def _culprit(self, batch: Batch) -> str:
        """What to name when the loss is not finite: data if it is bad, else the loss itself."""
        return next((k for k, x in batch.items() if x.is_floating_point() and not x.isfinite().all()), "loss/td")

    # ------------------------------------------------------------------------------------------------------------ state
    def params(self) -> Mapping[str, Tensor]:
        """Weights and exploration rate: the same tensors at every call, updated in place."""
        return self._params

    def base_params(self) -> Mapping[str, Tensor]:
        """What another run may start from: the weights, not the exploration rate, which follows each run's own schedule."""
        return {name: x for name, x in self._params.items() if not _is_rate(name)}

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


def _is_rate(name: str) -> bool:
    """Whether the parameter `name` is an exploration rate."""
    return name.rpartition(".")[2] == _RATE
