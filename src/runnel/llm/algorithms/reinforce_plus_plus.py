"""REINFORCE++: PPO's loss without a critic, on advantages that are normalised over the whole batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import ClipConfig, ClippedAlgorithm, Part, clipped_loss, sum_channels
from runnel.llm.algorithms.ppo import normalised, token_rewards
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.ops.credit import group_mean, token_gae


@dataclass(frozen=True)
class ReinforcePPConfig(ClipConfig):
    """REINFORCE++."""

    on_resume: ClassVar[OnResume] = live("max_advantage", "max_log_ratio") | may_change("baseline")

    kl_coef: float = bounded(0.01, at_least=0)
    """Weight of the KL to a reference policy; 0 keeps no reference."""
    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL counts: as a loss component (the k3 estimator), or subtracted from the reward of each token."""
    baseline: Literal["none", "group"] = "none"
    """What is subtracted from rewards before they are normalised over the batch: nothing, or the mean of the prompt's group."""
    max_advantage: float | None = bounded(None, above=0)
    """Tokens whose normalised advantage is larger are left out (StableReinforce: 3); None: none."""
    max_log_ratio: float | None = bounded(None, above=0)
    """The log of the policy ratio is cut at this before the exponential (StableReinforce: log 1000 = 6.9); None: nowhere."""


class ReinforcePlusPlus(ClippedAlgorithm):
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262, sec. 3): no critic and no groups are needed.

        r_t = [t is the last token] R - [kl_in = reward] kl_coef (log mu - log pi_ref)(y_t)
        A_t = sum_{s >= t} r_s,   then (A - mean(A)) / std(A) over all tokens of the batch
        L   = -1/N sum_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)

    `baseline` "group" is its variant with a baseline, where R is the reward minus the mean of its prompt's group; the paper
    puts the KL into the loss there.

    `max_log_ratio` and `max_advantage` are StableReinforce (Zhang et al. 2025, R1-Reward, arXiv:2505.02835, sec. 4): the
    ratio cannot overflow, and an advantage that is more than three deviations away is one of a batch that is nearly all right
    or all wrong, and is left out. Such tokens stay in N (our choice). The paper's reward of consistency needs a judge, which is
    a reward of the task.
    """

    config: ReinforcePPConfig

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        mask, owner, num = rows["loss_mask"], token_owner(rows), len(rows["group"])
        # `rewards` have the KL of the whole trajectory in them already; here each token pays its own
        plain = sum_channels(rows, self.channels)
        baseline = group_mean(plain, rows["group"]) if self.config.baseline == "group" else None
        earned = token_rewards(self, rows, baseline)
        to_go, _ = token_gae(earned, torch.zeros_like(earned), mask, owner, num_rows=num, gamma=1.0, lam=1.0)
        advantage = normalised(to_go, mask, collective)
        if (limit := self.config.max_advantage) is not None:
            advantage = advantage * (advantage.abs() <= limit)
        return Batch(advantage=advantage)

    def loss(self, part: Part, denominator: float) -> Loss:
        return clipped_loss(part, denominator, self.config, max_log_ratio=self.config.max_log_ratio)
