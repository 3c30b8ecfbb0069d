"""PPO-max: PPO with a critic, with rewards and advantages held in bounds; macro actions; a filter of completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import sum_channels
from runnel.llm.algorithms.ppo import TokenPPO, TokenPPOConfig, token_rewards
from runnel.llm.learning.batches import token_owner
from runnel.ops.credit import kept_of_group, row_sum, token_gae
from runnel.ops.returns import standardise


@dataclass(frozen=True)
class PPOMaxConfig(TokenPPOConfig):
    """PPO on tokens, with what made it stable."""

    on_resume: ClassVar[OnResume] = live("reward_clip", "advantage_clip") | may_change("macro", "keep")

    kl_coef: float = bounded(0.05, at_least=0)
    """Weight of the KL to a reference policy; 0 keeps no reference."""
    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL counts: as a loss component (the k3 estimator), or subtracted from the reward of each token."""
    reward_clip: float | None = bounded(5.0, above=0)
    """Rewards of completions get mean 0 and deviation 1 in each batch, and are cut at this; None: they stay as they are."""
    advantage_clip: float | None = bounded(5.0, above=0)
    """Advantages are cut at this; None: nowhere."""
    macro: int = bounded(1, at_least=1)
    """Tokens in a macro action: credit goes from one to the next instead of from token to token."""
    keep: Literal["all", "best", "best_worst"] = "all"
    """The completions of a prompt that are trained on: all, the best by reward, or the best and the worst."""


class PPOMax(TokenPPO):
    """PPO-max (Zheng et al. 2023, "Secrets of RLHF in large language models part I", arXiv:2307.04964, sec. 5), with two later
    changes of PPO as settings.

        R~  = clip((R - mean(R)) / std(R), -reward_clip, reward_clip)                                    over the batch
        r_t = [t is the last token] R~ - kl_coef (log mu - log pi_ref)(y_t)
        A_t = GAE(r, V; gamma, lam), to mean 0 and deviation 1 over the batch, cut at advantage_clip

    Loss, value clip and the critic's warm-up are those of `TokenPPO`. In the paper mean and deviation of rewards are those of
    the whole run so far; here they are of the batch, so that nothing but weights has to be kept. Its term of pretraining is
    left out. The bounds are ours.

    `macro` n > 1: MA-RLHF (Chai et al. 2024, arXiv:2410.02743, sec. 3) with n-grams. n tokens in a row are one action: its
    reward is the sum of theirs, its value their mean, and GAE goes over actions; all tokens of an action have its advantage,
    and the critic learns its return at each. Ratios are clipped by token, as in the authors' code.

    `keep` "best" or "best_worst": PF-PPO (Shen and Zhang 2024, arXiv:2409.06957) trains only on those completions of a prompt
    whose rewards are to be trusted, the best, or the best and the worst; the others are in no mean.
    """

    config: PPOMaxConfig

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        if self.config.keep == "all":
            return super().annotate(rows, collective)
        rewards = sum_channels(rows, self.channels)
        kept = kept_of_group(rewards, rows["group"], self.config.keep)
        out = super().annotate(Batch(rows | {"loss_mask": rows["loss_mask"] & kept[token_owner(rows)]}), collective)
        # a user watches what the policy does, and not what was chosen of it
        return Batch(out | self.stats(rows, rewards) | {"stats/kept": kept.float().mean()})

    def earned(self, rows: Batch, collective: Collective) -> Tensor:
        if self.config.reward_clip is None:
            return token_rewards(self, rows)
        rewards = sum_channels(rows, self.channels)
        played = row_sum(rows["loss_mask"].float(), token_owner(rows), len(rewards)) > 0
        scaled = rewards.clone()
        scaled[played] = standardise(rewards[played], collective).clamp(-self.config.reward_clip, self.config.reward_clip)
        return token_rewards(self, rows, rewards - scaled)

    def advantages(self, earned: Tensor, rows: Batch) -> tuple[Tensor, Tensor]:
        if self.config.macro == 1:
            return super().advantages(earned, rows)
        mask, owner, earned = rows["loss_mask"], token_owner(rows), earned.to(rows["value"].dtype)
        places, action, of_action = macro_actions(mask, owner, self.config.macro)
        num = len(of_action)
        length = row_sum(torch.ones_like(earned[places]), action, num)
        reward = row_sum(earned[places], action, num)
        value = row_sum(rows["value"][places], action, num) / length
        whole = torch.ones(num, dtype=torch.bool)
        c, rest = self.config, len(rows["group"])
        found = token_gae(reward, value, whole, of_action, num_rows=rest, gamma=c.gamma, lam=c.gae_lambda)
        advantage, returns = torch.zeros(2, len(mask), dtype=value.dtype)
        advantage[places], returns[places] = (x[action] for x in found)
        return advantage, returns

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        out = super().token_credit(rewards, rows, collective)
        if (limit := self.config.advantage_clip) is not None:
            out["advantage"] = out["advantage"].clamp(-limit, limit)
        return out


def macro_actions(mask: Tensor, owner: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Runs of `size` trained tokens of each trajectory: places of the tokens `[M]`, the action of each `[M]`, and the
    trajectory of each action. The last action of a trajectory may be shorter.

    >>> mask, owner = torch.tensor([False, True, True, True, False, True]), torch.tensor([0, 0, 0, 0, 1, 1])
    >>> [x.tolist() for x in macro_actions(mask, owner, 2)]
    [[1, 2, 3, 5], [0, 0, 1, 2], [0, 0, 1]]
    """
    places = mask.nonzero().squeeze(1)
    mine = owner[places]
    count = torch.bincount(mine, minlength=int(owner.max()) + 1 if len(owner) else 0)
    begins = (torch.arange(len(places)) - (count.cumsum(0) - count)[mine]) % size == 0
    return places, begins.long().cumsum(0) - 1, mine[begins]
