"""MAPPO (Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games", arXiv:2103.01955).

PPO with a central critic: while it learns, the critic of an agent reads the global state of the team, so chance and deeds of
others that an agent does not see no longer look like its own merit. Policies stay what they are and act by what they see.

The critic learns on the scale of running statistics of the returns (`nets/central.ValueNorm`). Its values are taken back from
that scale for advantages, and targets are put on it for its loss; that is here. All else is `agents/ppo.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.ppo import Numbers, PPOConfig, PPOLearner
from runnel.core.bounds import bounded, scheduled
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, stays
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE
from runnel.losses.base import Loss
from runnel.losses.on_policy import huber_value_loss
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.central import CentralBody, ValueNorm

SAID, TARGET = "said", "target"
"""Columns of a batch on the critic's scale: what it said before the update, and what it is to say."""


@dataclass(frozen=True)
class MAPPOConfig(PPOConfig):
    """Hyperparameters of MAPPO: those of PPO, with defaults of the paper (appendix C), and those of the central critic."""

    on_resume: ClassVar[OnResume] = live("huber_delta") | stays(
        *("normalise_value", "value_decay", "agent_state"), why="what the critic learned is on that scale, of that input"
    )

    lr: float | str = scheduled(7e-4)
    """Learning rate of Adam: a number, or a schedule such as "linear(1e-3, 0)"."""
    num_epochs: int = bounded(10, at_least=1)
    """Passes over each batch: the paper advises at most 10, and 5 where a task is hard."""
    num_minibatches: int = bounded(1, at_least=1)
    """Optimiser steps per pass; must divide the batch. The paper advises not to split."""
    entropy_coef: float = bounded(0.01, finite=True)
    """Weight of the entropy bonus."""
    value_coef: float = bounded(1.0, finite=True)
    """Weight of the critic's loss."""
    value_clip: float | None = bounded(0.2, above=0)
    """Keep the critic within this distance of its value before the update, on its own scale; None does not clip."""
    max_grad_norm: float = bounded(10.0, above=0)
    """Gradients are scaled down to this global norm."""
    normalise_obs: bool = True
    """Normalise observations by running statistics that are published with the parameters."""
    normalise_value: bool = True
    """The critic learns returns less their running mean, in units of their running deviation."""
    value_decay: float = bounded(0.99999, at_least=0, below=1)
    """How much of those statistics an update keeps; near 1, they are of all returns so far alike."""
    huber_delta: float | None = bounded(10.0, above=0)
    """Errors of the critic beyond this count linearly, on its own scale (Huber); None squares all of them."""
    agent_state: bool = True
    """The critic reads what its own agent sees, and which one it is, beside the global state."""

    def unused(self, group: str, *, fresh: bool) -> dict[str, str]:
        """As for PPO, and settings of statistics that are not kept."""
        idle = {} if self.normalise_value else {f"{group}.value_decay": f"is of running returns; set {group}.normalise_value"}
        return super().unused(group, fresh=fresh) | idle


class MAPPOLearner(PPOLearner):
    """Consumes `[T, B]` segments with a global state, one batch a version; owns the network and its optimiser."""

    config: MAPPOConfig

    def __init__(
        self, config: MAPPOConfig, net: ActorCritic, *, seed: int, collective: Collective | None = None, device: str = "cpu"
    ) -> None:
        super().__init__(config, net, seed=seed, collective=collective, device=device)
        # beside the critic that it is of, where that is ours, so that it is published with it; else on its own
        self.value_norm = self.net.body.value_norm if isinstance(self.net.body, CentralBody) else ValueNorm().to(device)
        self.value_norm.beta = config.value_decay

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """V of obs leaves `[N, *shape] -> [N]`, on the scale of returns; without gradient."""
        return self.value_norm.denormalise(super().value(obs))

    def learn(self, batch: Batch) -> tuple[Numbers, Tensor]:
        """The whole update on the device, as for PPO: first the returns move the critic's scale, then it learns on that."""
        # `said` is by the old scale, as the values were: it is then exactly what the network gave, and no clip bites at first
        said = self.value_norm.normalise(batch["value"])
        if self.config.normalise_value:
            # once a batch, before its passes: each of them then has the same targets, and the next batch is judged by the
            # scale on which the critic was trained
            self.value_norm.update(self._trained_on(batch)["return"], self.collective)
        return super().learn(Batch(batch | {SAID: said, TARGET: self.value_norm.normalise(batch["return"])}))

    def value_loss(self, values: Tensor, rows: Mapping[str, Tensor], count: Tensor | float) -> Loss:
        """The error of the critic on its own scale, with the clip of PPO; squared, or Huber's."""
        delta = self.config.huber_delta
        if delta is None:
            return super().value_loss(values, {**rows, "value": rows[SAID], "return": rows[TARGET]}, count)
        clip, mask = self.config.value_clip, rows.get(ACTIVE)
        return huber_value_loss(
            values, rows[TARGET], delta=delta, denominator=count, behaviour_value=rows[SAID], clip=clip, mask=mask
        )

    def state_dict(self) -> State:
        return {**super().state_dict(), "value_norm": {k: x.clone() for k, x in self.value_norm.state_dict().items()}}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.value_norm.load_state_dict({k: torch.as_tensor(x) for k, x in state["value_norm"].items()})
