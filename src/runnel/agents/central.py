"""One critic for a whole team: V of the global state, its credit and its update, for learners whose policies share it.

Credit is that of `ops/decisions.py` with the team as one row: from one moment at which any agent decides to the next one, with
the mean reward of all agents (`agents/joint.py`). The critic learns on the scale of returns (`nets/central.ValueNorm`), as that
of MAPPO (Yu et al. 2022, arXiv:2103.01955, sec. 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from runnel.agents.base import Shuffle
from runnel.agents.deciding import single_steps
from runnel.agents.joint import Joint
from runnel.core import schedule
from runnel.core.bounds import bounded, scheduled
from runnel.core.contracts.learning import Collective
from runnel.core.errors import NonFiniteError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change, stays
from runnel.core.rng import make_seed
from runnel.core.state import State
from runnel.core.trajectories import ACTIVE
from runnel.losses.on_policy import huber_value_loss, value_loss
from runnel.nets.central import StateCritic, ValueNorm
from runnel.nets.optim import Adam
from runnel.ops.decisions import decisions, gae_of_decisions
from runnel.ops.returns import explained_variance

Numbers = dict[str, Tensor]


@dataclass(frozen=True)
class CentralConfig:
    """Settings of learners with one critic for the team. Defaults are those of MAPPO's paper (arXiv:2103.01955, appendix C)."""

    on_resume: ClassVar[OnResume] = (
        live("critic_lr", "gae_lambda", "num_epochs", "value_clip", "huber_delta", "max_grad_norm")
        | may_change("gamma", "num_minibatches")
        | stays("normalise_obs", "normalise_value", "value_decay", why="what was learned is on that scale")
    )

    critic_lr: float | str = scheduled(7e-4)
    """Learning rate of the central critic: a number, or a schedule such as "linear(1e-3, 0)"."""
    gamma: float = bounded(0.99, at_least=0, at_most=1)
    """Discount of future rewards, from one step at which any agent of the team decides to the next one."""
    gae_lambda: float = bounded(0.95, at_least=0, at_most=1)
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the observed returns."""
    num_epochs: int = bounded(10, at_least=1)
    """Passes over each batch."""
    num_minibatches: int = bounded(1, at_least=1)
    """Optimiser steps per pass."""
    value_clip: float | None = bounded(0.2, above=0)
    """Keep the critic within this distance of its value before the update, on its own scale; None does not clip."""
    huber_delta: float | None = bounded(10.0, above=0)
    """Errors of the critic beyond this count linearly, on its own scale (Huber); None squares all of them."""
    max_grad_norm: float = bounded(10.0, above=0)
    """Gradients are scaled down to this global norm."""
    normalise_obs: bool = True
    """Normalise observations, and the global state, by running statistics."""
    normalise_value: bool = True
    """The critic learns returns less their running mean, in units of their running deviation."""
    value_decay: float = bounded(0.99999, at_least=0, below=1)
    """How much of those statistics an update keeps; near 1, they are of all returns so far alike."""

    def unused(self, group: str, *, fresh: bool) -> dict[str, str]:
        """Settings of `group` that a run does not read, and why; `fresh`: the policy itself has sampled."""
        idle = {} if self.normalise_value else {f"{group}.value_decay": f"is of running returns; set {group}.normalise_value"}
        if self.num_epochs * self.num_minibatches == 1:
            idle[f"{group}.value_clip"] = f"one optimiser step a batch never gets there; set {group}.num_epochs"
        return idle


class Credit(NamedTuple):
    """Credit of the whole team, all `[T, E]`: values, advantages, targets of the critic, and where they mean something."""

    values: Tensor
    advantages: Tensor
    returns: Tensor
    counts: Tensor


class CentralCritic:
    """V of the global state, its optimiser and its scale."""

    def __init__(
        self, config: CentralConfig, net: StateCritic, *, seed: int, collective: Collective, device: str = "cpu"
    ) -> None:
        self.net, self.collective, self._seed = net.to(device), collective, seed
        self.optimiser = Adam(net.parameters(), lr=schedule.at(config.critic_lr, 0.0), eps=1e-5)
        self.value_norm = ValueNorm(beta=config.value_decay).to(device)
        self.shuffle = Shuffle(make_seed(seed, "critic", collective.rank), device=device)

    def reseed(self, version: int) -> None:
        """A rank that joins at `version` shuffles in orders of its own; its owner saves the shuffle."""
        seed = make_seed(self._seed, "critic", self.collective.rank, version)
        self.shuffle.load_state_dict(Shuffle(seed, device=str(self.value_norm.m.device)).state_dict())

    @torch.no_grad()
    def credit(self, joint: Joint, config: CentralConfig) -> Credit:
        """Generalised advantages of the team, on the scale of returns."""
        num_steps, num_envs = joint.rewards.shape
        state = {key: torch.cat([x.flatten(0, 1), joint.final_state[key]]) for key, x in joint.state.items()}
        values = self.value_norm.denormalise(self.net(state).squeeze(-1))
        at_steps, at_ends = values[: (num_steps + 1) * num_envs], values[(num_steps + 1) * num_envs :]
        following = at_steps[num_envs:].index_copy(0, joint.final_index, at_ends).view(num_steps, num_envs)
        now = at_steps[: num_steps * num_envs].view(num_steps, num_envs)
        found = decisions(joint.rewards, following, joint.terminated, joint.truncated, joint.active)
        advantages, returns = gae_of_decisions(found, now, joint.active, gamma=config.gamma, lam=config.gae_lambda)
        return Credit(now, advantages, returns, found.counts)

    def rows(self, joint: Joint, credit: Credit, config: CentralConfig) -> Batch:
        """What the critic trains on: the moments that count."""
        state = {key: joint.state[key][:-1] for key in self.net.obs}
        columns = {**state, "value": credit.values, "return": credit.returns}
        return single_steps(columns, credit.counts, at_least=config.num_minibatches)

    def learn(self, batch: Batch, config: CentralConfig, *, version: int) -> Numbers:
        """All passes over the rows. Metrics `[]` by name."""
        flags = batch[ACTIVE]
        said = self.value_norm.normalise(batch["value"])
        if config.normalise_value:  # once a batch, before its passes, as for MAPPO
            self.value_norm.update(batch["return"][flags], self.collective)
        target = self.value_norm.normalise(batch["return"])
        history = []
        for rows in passes(Batch(batch | {"said": said, "target": target}), self.shuffle, config):
            count = count_of(rows, self.collective)
            values = self.net({key: rows[key] for key in self.net.obs}).squeeze(-1)
            error = value_loss if config.huber_delta is None else partial(huber_value_loss, delta=config.huber_delta)
            held, mask = rows["said"], rows[ACTIVE]
            loss = error(
                values, rows["target"], denominator=count, behaviour_value=held, clip=config.value_clip, mask=mask
            ).value
            refuse_non_finite("loss/value", loss, version)
            self.optimiser.step(loss, max_norm=config.max_grad_norm, collective=self.collective)
            history.append(loss.detach())
        self.net.update_statistics({key: batch[key][flags] for key in self.net.obs}, self.collective)
        explained = explained_variance(batch["value"][flags], batch["return"][flags], self.collective)
        return {"loss/value": torch.stack(history).mean(), "explained_variance": explained}

    def state_dict(self) -> State:
        return {
            "net": {k: v.clone() for k, v in self.net.state_dict().items()},
            "optimiser": self.optimiser.state_dict(),
            "value_norm": {k: x.clone() for k, x in self.value_norm.state_dict().items()},
        }

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.value_norm.load_state_dict({k: torch.as_tensor(x) for k, x in state["value_norm"].items()})


def passes(batch: Batch, shuffle: Shuffle, config: CentralConfig) -> Iterator[dict[str, Tensor]]:
    """The minibatches of an update: `num_epochs` passes, each in an order of its own. A few rows may be left of an order."""
    num_rows = len(batch[ACTIVE])
    size = num_rows // config.num_minibatches
    for _ in range(config.num_epochs):
        order = shuffle.order(num_rows)
        leaves = {key: torch.split(x.index_select(0, order), size) for key, x in batch.items()}
        for i in range(config.num_minibatches):
            yield {key: parts[i] for key, parts in leaves.items()}


def count_of(rows: Mapping[str, Tensor], collective: Collective) -> Tensor:
    """Rows of all ranks that a mean over the minibatch is of; ranks may have unequal numbers."""
    return collective.all_reduce(rows[ACTIVE].sum().double()).clamp(min=1.0)


def refuse_non_finite(name: str, loss: Tensor, version: int) -> None:
    """Refuse a loss that is not finite before the step."""
    if not math.isfinite(loss.item()):
        raise NonFiniteError(name, version)
