"""Algorithms for tokens: each turns segments into annotated tokens, and nothing else.

An annotation says for every token which loss component trains it (`component`), how much (`weight`) and in which direction
(`advantage`). The learner sums the components and never learns an algorithm's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from runnel.core.batch import Batch
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Segment
from runnel.ops.credit import group_advantage, leave_one_out

NONE, POLICY, SFT = 0, 1, 2


class Algorithm(Protocol):
    """Annotates the groups of a batch. Per token: `tokens`, `component`, `weight`, `advantage`, `logprob`, `policy_version`
    `[N]`; per row `row_start`, `row_length` `[R]`; `stats/<name>` scalars to show."""

    def annotate(self, segments: Sequence[Segment]) -> Batch: ...


def annotate_sft(segments: Sequence[Segment]) -> Batch:
    """Demonstrations: cross entropy on the answer's tokens, all of equal weight."""
    batch = join_rows(segments)
    mask = batch.pop("loss_mask")
    zeros = torch.zeros(mask.shape, device=mask.device)
    batch |= {"component": mask.to(torch.int8) * SFT, "weight": mask.float(), "advantage": zeros, "logprob": zeros}
    batch["policy_version"] = torch.full(mask.shape, -1, device=mask.device)
    return batch


@dataclass(frozen=True)
class GRPOConfig:
    """Group-relative policy optimisation."""

    credit: Literal["grpo", "dr_grpo", "rloo"] = "grpo"
    """A reward against its group: grpo (minus mean, over deviation), dr_grpo (minus mean), rloo (minus mean of the others)."""


class GRPO:
    """Group-relative advantages: each completion against the others of its prompt, spread over its tokens.

    `channels` gives each reward channel its weight in the sum that is maximised. A group in which every completion got the
    same reward says nothing (`groups_zero_signal`); its tokens still count in the denominator.
    """

    def __init__(self, config: GRPOConfig, *, channels: Mapping[str, float]) -> None:
        if not channels:
            raise ConfigError("channels", dict(channels), "name at least one reward channel with its weight")
        self.config, self.channels = config, dict(channels)

    def annotate(self, segments: Sequence[Segment]) -> Batch:
        batch = join_rows(segments)
        mask = batch.pop("loss_mask")
        rewards = self._rewards(segments)
        advantage = self._advantage(rewards)
        batch |= {"component": mask.to(torch.int8) * POLICY, "weight": mask.float()}
        batch["advantage"] = advantage.flatten().repeat_interleave(batch["row_length"]) * mask
        for name in ("logprob", "policy_version"):
            batch[name] = torch.cat([s.arrays[name] for s in segments])
        return Batch(batch | self._stats(segments, rewards, mask))

    def _rewards(self, segments: Sequence[Segment]) -> Tensor:
        """The weighted sum of reward channels. `[G, n]`"""
        return torch.stack([sum_channels(s.arrays, self.channels) for s in segments])

    def _advantage(self, rewards: Tensor) -> Tensor:
        if self.config.credit == "rloo":
            return leave_one_out(rewards)
        return group_advantage(rewards, scale=self.config.credit == "grpo")

    def _stats(self, segments: Sequence[Segment], rewards: Tensor, mask: Tensor) -> Batch:
        ended = torch.cat([s.arrays["terminated"] for s in segments]).float()
        stats = {
            "reward/mean": rewards.mean(),
            "reward/std": rewards.std(dim=1).mean(),
            "completion_length": mask.sum() / rewards.numel(),
            "completion_ended": ended.mean(),
            "groups_zero_signal": (rewards.std(dim=1) < 1e-6).float().mean(),
        }
        for channel in self.channels:
            stats[f"reward/{channel}"] = torch.cat([s.arrays[f"rewards/{channel}"] for s in segments]).mean()
        return Batch({f"stats/{k}": v for k, v in stats.items()})


def sum_channels(arrays: Mapping[str, Tensor], channels: Mapping[str, float]) -> Tensor:
    """`sum_c weight_c * rewards/c`. `[n]`"""
    missing = [c for c in channels if f"rewards/{c}" not in arrays]
    if missing:
        raise DataError(f"segments have no reward channel {missing[0]!r}; name it in the stream, or leave it out of channels")
    return torch.stack([weight * arrays[f"rewards/{c}"] for c, weight in channels.items()]).sum(dim=0)


def join_rows(segments: Sequence[Segment]) -> Batch:
    """The ragged rows of several segments as those of one: `tokens`, `loss_mask` `[N]`, `row_start`, `row_length` `[R]`."""
    arrays = [s.arrays for s in segments]
    out = Batch({k: torch.cat([a[k] for a in arrays]) for k in ("tokens", "loss_mask", "row_length")})
    out["row_start"] = out["row_length"].cumsum(0) - out["row_length"]
    return out
