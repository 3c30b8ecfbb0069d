"""OPMD: online policy mirror descent with a square in place of a clip, and a reward for short right answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live
from runnel.llm.algorithms.base import Component, Part, PolicyConfig, TrajectoryAlgorithm, trajectory_loss
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import mirror_descent_loss
from runnel.ops.credit import group_mean, row_sum


@dataclass(frozen=True)
class OPMDConfig(PolicyConfig):
    """Online policy mirror descent."""

    on_resume: ClassVar[OnResume] = live("tau", "length_coef", "pass_reward")

    tau: float = bounded(0.1, at_least=0)
    """How strongly the policy is held to the one that sampled."""
    length_coef: float = bounded(0.0, at_least=0)
    """Weight of the length reward among the completions of a prompt; 0: none."""
    pass_reward: float = bounded(0.5, finite=True)
    """A completion is a right one from this reward on: only right ones are rewarded for being short."""

    def unused(self) -> dict[str, str]:
        length = {} if self.length_coef else {"pass_reward": "is of the length reward; set length_coef"}
        return super().unused() | length


class OPMD(TrajectoryAlgorithm):
    """Online policy mirror descent of Kimi k1.5 (Kimi Team 2025, arXiv:2501.12599, sec. 2.3.2, eq. 3), with its length
    reward (sec. 2.3.3).

        A_i = R_i + length_coef P_i - mean(R + length_coef P)                                                within the group
        d_i = log pi(y_i) - log mu(y_i)
        L   = -1/R sum_i (A_i log pi(y_i) - tau/2 d_i^2)
        P_i = p_i where R_i >= pass_reward, else min(p_i, 0);   p_i = 0.5 - (|y_i| - min|y|) / (max|y| - min|y|)

    P is 0 in a group in which all are equally long. The equation is made for samples of an older policy, so `num_epochs`, older
    versions and several steps a batch are right without an importance weight; on fresh samples its first step is that of
    REINFORCE with the group's mean as baseline. The paper does not say tau; 0.1 is ours.
    """

    config: OPMDConfig
    metrics = ("mirror/square", "approx_kl")

    @property
    def components(self) -> Mapping[str, Component]:
        found = dict(super().components)
        # the square holds tokens of every trajectory, also where no advantage moves them
        return found | {"policy": replace(found["policy"], by_advantage=False)}

    def shaped(self, rewards: Tensor, rows: Batch) -> Tensor:
        return super().shaped(rewards, rows) + self.config.length_coef * self.shortness(rewards, rows)

    def shortness(self, rewards: Tensor, rows: Batch) -> Tensor:
        """The length reward of each trajectory, between -0.5 and 0.5. `[B]`"""
        length = row_sum(rows["loss_mask"].float(), token_owner(rows), len(rewards))
        group, num = rows["group"], int(rows["group"].max()) + 1 if len(rewards) else 0
        least, most = (torch.zeros(num).scatter_reduce(0, group, length, how, include_self=False) for how in ("amin", "amax"))
        spread = (most - least)[group]
        found = 0.5 - (length - least[group]) / spread.clamp(min=1.0)
        found = torch.where(rewards >= self.config.pass_reward, found, found.clamp(max=0.0))
        return found * (spread > 0)

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return rewards - group_mean(rewards, rows["group"])

    def loss(self, part: Part, denominator: float) -> Loss:
        return trajectory_loss(mirror_descent_loss, part, denominator, tau=self.config.tau)
