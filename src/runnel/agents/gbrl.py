"""PPO on gradient-boosted trees instead of a network (GBRL: Fuhrer et al. 2024, arXiv:2407.08250).

Where a network moves its weights along the gradient of the loss, an ensemble of trees moves its outputs: each optimiser step of
PPO adds one tree, fitted to the negative gradient of the loss with respect to what the ensemble says of each row,

    f_{k+1}(s) = f_k(s) + rate tree_k(s),     tree_k fits -N dL/df(s_n),  n = 1 ... N

A tree has leaves for the policy and for the value, with a rate for each (`nets/trees.py`). A constant, and the standard
deviation of continuous actions, are learned by Adam.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from runnel.agents.ppo import Numbers, PPOConfig, PPOLearner
from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change, stays
from runnel.nets.actor_critic import ActorCritic
from runnel.nets.trees import TreeBody


@dataclass(frozen=True)
class GBRLConfig(PPOConfig):
    """Hyperparameters of PPO, and of the trees."""

    on_resume: ClassVar[OnResume] = may_change("policy_rate", "value_rate", "num_bins") | stays(
        "depth", "max_trees", why="trees of that form are in the checkpoint"
    )

    lr: float | str = 1e-3
    num_epochs: int = 4
    num_minibatches: int = 1
    policy_rate: float = bounded(0.2, above=0, finite=True)
    """How far a tree moves the scores of the policy."""
    value_rate: float = bounded(0.05, above=0, finite=True)
    """How far a tree moves the value."""
    depth: int = bounded(4, at_least=1, at_most=10)
    """Questions of a tree; it has 2^depth leaves."""
    num_bins: int = bounded(32, at_least=2)
    """Quantiles of a number between which a tree may split, plus one."""
    max_trees: int = bounded(2_048, at_least=1)
    """Room for trees. An optimiser step takes one."""

    def check(self, batch_size: int) -> None:
        """Raise a `ConfigError` for settings that cannot train on `batch_size` rows."""
        try:
            super().check(batch_size)
        except ConfigError as error:
            raise ConfigError(error.field.replace("ppo.", "gbrl.", 1), error.value, error.fix) from None

    def check_room(self, num_updates: int) -> None:
        """Raise a `ConfigError` where the planned updates grow more trees than there is room for."""
        need = num_updates * self.num_epochs * self.num_minibatches
        if need > self.max_trees:
            fix = f"{num_updates} updates grow up to {need} trees; use at least that, or fewer num_epochs or num_minibatches"
            raise ConfigError("gbrl.max_trees", self.max_trees, fix)


class GBRLLearner(PPOLearner):
    """Consumes `[T, B]` segments, one batch a version; owns the trees."""

    config: GBRLConfig
    body: TreeBody

    def __init__(self, config: GBRLConfig, net: ActorCritic, *, seed: int, device: str = "cpu") -> None:
        super().__init__(config, net, seed=seed, device=device)
        assert isinstance(net.body, TreeBody)
        self.body = net.body
        num_scores = len(self.body.bias) - 1
        self._rates = torch.tensor([config.policy_rate] * num_scores + [config.value_rate], device=device)

    def step(self, rows: Mapping[str, Tensor]) -> Numbers:
        """One tree for the rows of a minibatch, and a step of Adam for what is no tree."""
        self._outputs = self.body(self.net.observe(rows)).detach().requires_grad_()
        numbers = self.loss(rows)
        self._check(rows, numbers)
        others = [p for p in self.net.parameters() if p is not self.body.bias]
        grad, *rest = torch.autograd.grad(numbers["loss/total"], [self._outputs, *others], materialize_grads=True)
        grads = {id(p): g for p, g in zip(others, rest, strict=True)} | {id(self.body.bias): grad.sum(0)}
        ordered = [grads[id(p)] for p in self.net.parameters()]
        norm = self.optimiser.apply(ordered, self.config.max_grad_norm, collective=self.collective)
        target = -grad * self._count(rows)
        self.body.grow(self.body.torso(self.net.observe(rows)), target, rates=self._rates, num_bins=self.config.num_bins)
        return {name: x.detach() for name, x in numbers.items()} | {"grad_norm": norm}

    def _forward(self, rows: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Scores and values as leaves of the gradient."""
        return self._outputs[:, :-1], self._outputs[:, -1], rows

    def learn(self, batch: Batch) -> tuple[Numbers, Tensor]:
        """As in PPO; tells how many trees there are."""
        history, means = super().learn(batch)
        count = self.body.num_trees.to(torch.float32)
        return {**history, "trees": count.expand(1)}, torch.cat([means[:-1], count.view(1), means[-1:]])
