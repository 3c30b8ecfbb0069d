"""GRPO-RoC: more trajectories are sampled than trained on; of the right ones, those with clean tool calls are preferred."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, may_change
from runnel.core.rng import content_id, make_rng
from runnel.llm.algorithms.base import Aggregation, ClipConfig, ClippedAlgorithm, sum_channels
from runnel.llm.learning.batches import token_owner
from runnel.ops.credit import group_advantage, row_sum

LEAST = 2
"""So many right ones and so many wrong ones of a group are kept, if there are as many, and room for both."""
NO_CALLS = 0.5
"""The share of failed calls that a trajectory without calls is taken to have (the authors' code)."""
SOFTEN = 0.05
"""Added to a penalty before it divides: a trajectory without any is not infinitely more likely."""


@dataclass(frozen=True)
class GRPORoCConfig(ClipConfig):
    """Resampling on correct."""

    on_resume: ClassVar[OnResume] = may_change("keep", "pass_reward")
    of_turns: ClassVar[tuple[str, ...]] = ClipConfig.of_turns

    clip_high: float | None = 0.28
    """The policy ratio stops counting above 1 + clip_high: room for tokens that were unlikely."""
    keep: float = bounded(0.5, above=0, at_most=1)
    """The share of each group's trajectories that is trained on; the others are in no mean and in no deviation."""
    pass_reward: float = bounded(0.5, finite=True)
    """A trajectory is a right one from this reward on."""


class GRPORoC(ClippedAlgorithm):
    """GRPO with resampling on correct (Shang et al. 2025, rStar2-Agent, arXiv:2508.20722, sec. 3.2).

        G' = keep * G of a group's G trajectories are kept, right and wrong ones in the proportion in which they came:
        wrong ones uniformly, right ones one after another with probability proportional to 1 / (p_err + p_cut)
        A_i = (R_i - mean(R)) / std(R)                                                                 among those kept
        L   = -1/N sum_i sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)          N tokens of those kept

    p_err is the share of its tool calls that failed, 0.5 without calls. The paper's second penalty is of the form of answers
    (missing or repeated tags); what a stream knows of form is whether a limit cut the trajectory: p_cut is 1 then, else 0. At
    least two of each kind are kept where there are as many. What is kept depends on the seed and on the group's sampled tokens.
    """

    config: GRPORoCConfig
    aggregation: Aggregation = "token"

    def __init__(self, config: GRPORoCConfig, *, channels: Mapping[str, float], max_tokens: int = 0, seed: int = 0) -> None:
        super().__init__(config, channels=channels, max_tokens=max_tokens)
        self._seed = seed

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        kept, rewards = self.kept(rows), sum_channels(rows, self.channels)
        out = super().annotate(Batch(rows | {"loss_mask": rows["loss_mask"] & kept[token_owner(rows)]}), collective)
        # a user watches what the policy does, and not what was chosen of it
        out |= self.stats(rows, rewards)
        right = rewards >= self.config.pass_reward
        penalty = penalties(rows)
        return Batch(
            out
            | {
                "stats/roc/kept": kept.float().mean(),
                "stats/roc/penalty": penalty[right].mean(),
                "stats/roc/penalty_kept": penalty[right & kept].mean(),
            }
        )

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        kept = row_sum(rows["loss_mask"].float(), token_owner(rows), len(rewards)) > 0
        out = torch.zeros_like(rewards)
        out[kept] = group_advantage(rewards[kept], rows["group"][kept], scale=True)
        return out

    def kept(self, rows: Batch) -> Tensor:
        """Which trajectories are trained on. `[B]`"""
        right = (sum_channels(rows, self.channels) >= self.config.pass_reward).numpy()
        weight, owner = 1.0 / (penalties(rows) + SOFTEN).double().numpy(), token_owner(rows)
        out = torch.zeros(len(right), dtype=torch.bool)
        for number in torch.unique(rows["group"]).tolist():
            members = (rows["group"] == number).nonzero().squeeze(1).numpy()
            # the trained tokens alone: they are the same however a trajectory is cut into rows
            tokens = rows["tokens"][rows["loss_mask"] & (rows["group"][owner] == number)]
            rng = make_rng(self._seed, "resample on correct", content_id(tokens.numpy().tobytes()))
            out[torch.from_numpy(choose(rng, members, right[members], weight[members], self.config.keep))] = True
        return out


def penalties(rows: Mapping[str, Tensor]) -> Tensor:
    """The share of failed tool calls of each trajectory, plus 1 for one that a limit cut. `[B]`"""
    cut = rows["truncated"].float()
    if "tool_calls" not in rows:
        return cut + NO_CALLS
    calls = rows["tool_calls"].float()
    return cut + torch.where(calls > 0, rows["tool_errors"] / calls.clamp(min=1.0), torch.full_like(cut, NO_CALLS))


def choose(rng: np.random.Generator, members: np.ndarray, right: np.ndarray, weight: np.ndarray, keep: float) -> np.ndarray:
    """Those of a group's `members` `[G]` that are kept: so many right ones and wrong ones as their proportion gives."""
    num_right, num = int(right.sum()), max(1, round(keep * len(members)))
    num_wrong = len(members) - num_right
    least = min(LEAST, num // 2)
    # in proportion, but a few of each kind, and no more than there are
    wrong = min(max(round(num_wrong * num / len(members)), least), num - least)
    wrong = min(max(wrong, num - num_right), num_wrong)
    odds = weight[right] / weight[right].sum() if num_right else None
    of_right = rng.choice(members[right], size=num - wrong, replace=False, p=odds) if num > wrong else members[:0]
    return np.concatenate([rng.choice(members[~right], size=wrong, replace=False), of_right])
