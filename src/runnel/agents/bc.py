"""Behaviour cloning: the policy learns to do what was done in the data (Pomerleau 1991; Bain & Sammut 1995).

    L = -1/N sum_i log pi(a_i | s_i)

which is the cross entropy of discrete actions, and for continuous ones the likelihood under a Gaussian. The network is that of
PPO (`nets/actor_critic.py`), so a run of PPO may start from a clone (`--init-from`); its critic stays as it was made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.base import read_metrics
from runnel.core import schedule
from runnel.core.bounds import bounded, check_bounds, scheduled
from runnel.core.contracts.learning import Collective, SingleProcess, Update
from runnel.core.errors import NonFiniteError
from runnel.core.live_settings import LiveConfig
from runnel.core.records import Batch, Segment
from runnel.core.resuming import OnResume, live, stays
from runnel.core.state import State
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.optim import Adam

SUMS = ("loss/imitation", "entropy")
"""Metrics that were divided by the count of the whole batch."""


@dataclass(frozen=True)
class BCConfig:
    """Hyperparameters of behaviour cloning."""

    on_resume: ClassVar[OnResume] = (
        live("lr", "max_grad_norm")
        | stays("batch_size", why="batches of that size are on their way")
        | stays("normalise_obs", why="what was learned is of that network")
    )

    lr: float | str = scheduled(1e-3)
    """Learning rate: a number, or a schedule such as "linear(1e-3, 0)"."""
    batch_size: int = bounded(256, at_least=1)
    """Steps of the data set in one update."""
    max_grad_norm: float = bounded(1.0, above=0)
    """Gradients are scaled down to this norm."""
    normalise_obs: bool = True
    """Scale observations by their running mean and deviation, which become part of the policy."""

    def check(self) -> None:
        """Raise a `ConfigError` for settings that cannot train."""
        check_bounds(self, "bc.")


class BCLearner(LiveConfig):
    """Consumes rows of observations and actions `[B]`, one batch a version; owns the network and its optimiser."""

    def __init__(
        self,
        config: BCConfig,
        net: ActorCritic,
        *,
        seed: int = 0,
        collective: Collective | None = None,
        device: str = "cpu",
    ) -> None:
        config.check()
        self.config, self.net, self.device = config, net.to(device), torch.device(device)
        self.collective: Collective = collective or SingleProcess()
        self.version, self._seed = 0, seed
        self.optimiser = Adam(net.parameters(), lr=schedule.at(config.lr, 0.0))
        self._params = dict(net.state_dict())

    def prepare(self, segments: Mapping[str, Sequence[Segment]], *, progress: float) -> Batch:
        """All rows in one batch `[B]`."""
        self.optimiser.lr = schedule.at(self.config.lr, progress)
        return Batch.cat([s.arrays for group in segments.values() for s in group]).to(self.device)

    def update(self, batch: Batch) -> Update:
        """One optimiser step."""
        # first the statistics: the first batch must be seen as all later ones are
        self.net.update_statistics({k: batch[k] for k in self.net.env_spec.obs}, self.collective)
        self.net.train()
        with self.net.drawing(self._seed, "network", self.collective.rank, self.version):
            numbers = self.loss(batch)
        if not math.isfinite(numbers["loss/imitation"].item()):
            raise NonFiniteError("loss/imitation", self.version)
        norm = self.optimiser.step(numbers["loss/imitation"], max_norm=self.config.max_grad_norm, collective=self.collective)
        numbers = {name: x.detach() for name, x in numbers.items()} | {"grad_norm": norm}
        metrics = read_metrics(numbers, self.collective, sums=SUMS, version=self.version)
        self.version += 1
        return Update({**metrics, "lr": self.optimiser.lr})

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """`-log pi(a | s)` as "loss/imitation", which is differentiated, and what is shown beside it."""
        count = len(batch["action"]) * self.collective.world_size
        logprob, entropy = self.net.evaluate(batch, batch["action"], batch.get("action_mask"))
        return {"loss/imitation": -logprob.sum() / count, "entropy": entropy.sum() / count}

    def params(self) -> Mapping[str, Tensor]:
        """Weights and statistics of observations: the same tensors at every call, updated in place."""
        return self._params

    def not_taken(self) -> Sequence[str]:
        return ("the optimiser's moments",)

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self._params.items()},
            "optimiser": self.optimiser.state_dict(),
            "version": self.version,
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.version = state["version"]
