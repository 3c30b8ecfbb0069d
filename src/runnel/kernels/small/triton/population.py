"""PPO for a population on a CUDA device: the steps of all members in one launch of each kernel.

One launch for 32 small learners costs little more than one for a single learner. It stands in for `PopulationLearner`
(`agents/ppo_population.py`), which makes the same steps member by member.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from runnel.agents.ppo import Numbers, PPOConfig, PPOLearner
from runnel.core.contracts.learning import Update
from runnel.core.records import Batch
from runnel.kernels.small.numba.ppo import METRICS
from runnel.kernels.small.triton.ppo import TritonActorCritic
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.optim import flat_view
from runnel.nets.population import Population
from runnel.ops.returns import explained_variance


class TritonPopulationLearner(PPOLearner):
    """All members in the same kernels, with one flat vector of weights and one optimiser. Each member has its own gradient
    norm."""

    def __init__(self, config: PPOConfig, net: Population, *, seed: int, device: str) -> None:
        super().__init__(replace(config, normalise_advantage=False), cast(ActorCritic, net), seed=seed, device=device)
        self.population, self._standardises = net, config.normalise_advantage
        vector = flat_view(list(net.parameters()))
        assert vector is not None, "the optimiser has laid the parameters one after the other"
        self._kernels = TritonActorCritic(net.members[0], vector, members=len(net.members))

    def make_batch(self, data: Batch) -> Batch:
        self.population.keep(data["rewards/env"], data["terminated"] | data["truncated"])
        batch, (num_steps, _) = super().make_batch(data), data["terminated"].shape
        if self._standardises:
            advantages = batch["advantage"].view(num_steps, len(self.population.members), -1)
            std, mean = torch.std_mean(advantages, dim=(0, 2), keepdim=True, correction=0)
            batch["advantage"] = ((advantages - mean) / (std + 1e-8)).flatten()
        return batch

    def value(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The critics, on flattened rows `[T, members * num_envs]`. `[N, ...] -> [N]`"""
        return self._kernels.values(obs, width=len(self.population.members) * self.population.num_envs)

    def update(self, batch: Batch) -> Update:
        """Make one version of every member."""
        history, means = self.learn(batch)
        metrics = self._metrics(batch, history, means)
        self.version += 1
        return Update(metrics)

    def learn(self, batch: Batch) -> tuple[Numbers, Tensor]:
        history = self.epochs(batch)
        explained = explained_variance(batch["value"], batch["return"], self.collective)
        return history, torch.stack([*(x.mean() for x in history.values()), explained])

    def epochs(self, batch: Batch) -> Numbers:
        """As `PPOLearner.epochs`, with another order for each member. Returns means over members. `-> {name: [steps]}`"""
        c, num = self.config, len(self.population.members)
        num_rows, width = len(batch["advantage"]) // num, num * self.population.num_envs
        size = num_rows // c.num_minibatches
        history = [
            self._kernels.step(batch, order, rows=(first, first + size), width=width, optimiser=self.optimiser, config=c)
            for order in self.shuffle.orders(c.num_epochs * num, num_rows).view(c.num_epochs, num, -1)
            for first in range(0, num_rows, size)
        ]
        return dict(zip(METRICS, torch.stack(history).mean(1).unbind(1), strict=True))
