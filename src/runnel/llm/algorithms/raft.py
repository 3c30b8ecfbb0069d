"""RAFT and expert iteration: imitate the best of one's own samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.base import Part, PolicyAlgorithm, PolicyConfig, sum_channels
from runnel.llm.learning.batches import token_owner
from runnel.losses.base import Loss
from runnel.losses.token import reinforce_loss
from runnel.ops.credit import kept_of_group


@dataclass(frozen=True)
class RAFTConfig(PolicyConfig):
    """Reward-ranked fine-tuning."""

    on_resume: ClassVar[OnResume] = may_change("keep") | live("pass_reward")

    keep: Literal["best", "passing"] = "best"
    """Which completions of a prompt are imitated: the best one (RAFT), or all right ones (expert iteration)."""
    pass_reward: float = bounded(0.5, finite=True)
    """A completion is a right one from this reward on."""

    def unused(self) -> dict[str, str]:
        passing = {} if self.keep == "passing" else {"pass_reward": "the best is kept whatever its reward; set keep passing"}
        return super().unused() | passing


class RAFT(PolicyAlgorithm):
    """Reward-ranked fine-tuning (Dong et al. 2023, RAFT, arXiv:2304.06767, sec. 3): of each group the best completion is
    demonstrated to the policy that made it.

        L = -1/N sum_{i kept} sum_t log pi(y_it)  + kl_coef KL                                   N tokens of those kept

    With `keep` "passing" all completions from `pass_reward` on are kept: expert iteration (Anthony et al. 2017,
    arXiv:1705.08439; for language models ReST-EM, Singh et al. 2024, arXiv:2312.06585). With `kl_coef` above 0 it is SuperHF
    (Mukobi et al. 2023, arXiv:2310.16763), whose KL is of the whole distribution at each token of what is kept, where ours is
    the k3 estimate at the same tokens. With `kl_in` "reward" the KL decides which is the best (RAFT, eq. 4).

    The loss imitates, so samples of any age may be used, and a batch several times: the papers take whole epochs.
    """

    config: RAFTConfig

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        rewards = sum_channels(rows, self.channels)
        kept = self.kept(self.shaped(rewards, rows), rows)
        out = super().annotate(Batch(rows | {"loss_mask": rows["loss_mask"] & kept[token_owner(rows)]}), collective)
        # a user watches what the policy does, and not what was chosen of it
        return Batch(out | self.stats(rows, rewards) | {"stats/kept": kept.float().mean()})

    def kept(self, rewards: Tensor, rows: Batch) -> Tensor:
        """Which trajectories are imitated. `[B]`"""
        if self.config.keep == "passing":
            return rewards >= self.config.pass_reward
        return kept_of_group(rewards, rows["group"], "best")

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return torch.ones_like(rewards)

    def loss(self, part: Part, denominator: float) -> Loss:
        fields = part.fields
        return reinforce_loss(part.outputs["logprob"], fields["advantage"], weight=fields["weight"], denominator=denominator)
