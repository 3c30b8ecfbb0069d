"""What policy algorithms share: the row's reward, credit spread over its tokens, and the optional KL and entropy components.

An algorithm overrides `credit` (how good was a row), `surrogate` (which loss its tokens get), and perhaps `aggregation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import NEXT_UPDATE, OnResume, may_change
from runnel.llm.algorithms.base import POLICY, Aggregation, Component, Part, aggregate, row_reward, sum_channels
from runnel.losses.base import Loss
from runnel.losses.token import entropy_loss, kl_loss, policy_loss
from runnel.ops.credit import group_spread
from runnel.ops.ragged import row_index, row_sum

CLIP_METRICS = ("clip_fraction", "approx_kl")
OPTIONAL = ("logprob", "policy_version", "reference_logprob", "proximal_logprob", "value")
"""Fields that go from joined rows into the annotated batch as they are."""


@dataclass(frozen=True)
class PolicyConfig:
    """Settings of every policy algorithm."""

    on_resume: ClassVar[OnResume] = may_change(
        "kl_coef", then=f"{NEXT_UPDATE}; above 0 for the first time, the reference is the policy as it is then"
    ) | may_change("kl_in", "entropy_coef")

    kl_coef: float = 0.0
    """Weight of the KL to a reference policy; 0 keeps no reference."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL counts: as a loss component (the k3 estimator), or subtracted from the reward."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""

    def unused(self) -> dict[str, str]:
        """Settings that the algorithm, as it is set, does not read, and why."""
        return {} if self.kl_coef else {"kl_in": "there is no KL; set kl_coef"}

    def __post_init__(self) -> None:
        for name in ("kl_coef", "entropy_coef"):
            if getattr(self, name) < 0:
                raise ConfigError(name, getattr(self, name), "use 0 for none, or a positive weight")


@dataclass(frozen=True)
class ClipConfig(PolicyConfig):
    """Settings of algorithms with a clipped ratio."""

    on_resume: ClassVar[OnResume] = may_change("clip_low", "clip_high")

    clip_low: float = 0.2
    """The policy ratio stops counting below 1 - clip_low."""
    clip_high: float = 0.2
    """The policy ratio stops counting above 1 + clip_high."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("clip_low", "clip_high"):
            if getattr(self, name) <= 0:
                raise ConfigError(name, getattr(self, name), "the ratio needs an interval around 1; use a number above 0")


class PolicyAlgorithm:
    """Base of the policy algorithms (`base.Algorithm`). `channels` gives each reward channel its weight in what is maximised;
    `max_tokens` is the longest completion."""

    aggregation: Aggregation = "token"
    fresh_only: ClassVar[bool] = False
    """The loss has no importance weight: it is right on samples of the very weights that it changes, and on no others."""

    def __init__(self, config: PolicyConfig, *, channels: Mapping[str, float], max_tokens: int = 0) -> None:
        if not channels:
            raise ConfigError("channels", dict(channels), "name at least one reward channel with its weight")
        self.config, self.channels, self.max_tokens = config, dict(channels), max_tokens

    # -------------------------------------------------------------------------------------------------- what one overrides
    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        """The advantage of each row. `[R] -> [R]`"""
        raise NotImplementedError

    def surrogate(self) -> Component:
        """The component of the sampled tokens."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------------------- algorithm
    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"reference_logprob"} if self.config.kl_coef else ())

    @property
    def components(self) -> Mapping[str, Component]:
        out = {"policy": self.surrogate()}
        if self.config.kl_coef and self.config.kl_in == "loss":
            out["kl"] = Component(kl_component, coef=self.config.kl_coef, metrics=("kl",), denominator="policy")
        if self.config.entropy_coef:
            out["entropy"] = Component(entropy_component, coef=self.config.entropy_coef, denominator="policy")
        return out

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        mask, length = rows["loss_mask"], rows["row_length"]
        rewards = self.rewards(rows)
        weight, share = aggregate(mask, length, self.aggregation, constant=float(self.max_tokens or 1))
        out = Batch({k: rows[k] for k in ("tokens", "row_length", *OPTIONAL) if k in rows})
        out |= {"component": mask.to(torch.int8) * POLICY, "weight": weight, "denominator/policy": share}
        out["unit"] = torch.arange(len(length))
        out["advantage"] = self.credit(self.shaped(rewards, rows), rows, collective)[row_index(length)] * mask
        return Batch(out | self.stats(rows, rewards))

    def rewards(self, rows: Batch) -> Tensor:
        """The weighted sum of the reward channels. `[R]`"""
        return sum_channels(rows, self.channels)

    def shaped(self, rewards: Tensor, rows: Batch) -> Tensor:
        """Rewards as credit is given for them: minus `kl_coef` times the row's log-ratio to the reference, if that is
        wanted."""
        if not (self.config.kl_coef and self.config.kl_in == "reward"):
            return rewards
        gap = (rows["logprob"] - rows["reference_logprob"]) * rows["loss_mask"]
        return rewards - self.config.kl_coef * row_sum(gap, row_index(rows["row_length"]), len(rewards))

    def stats(self, rows: Batch, rewards: Tensor) -> Batch:
        """What a user watches; rows without a trained token (a baseline) are left out. NaN is what nothing was measured of: a
        channel that judged no row."""
        row, num = row_index(rows["row_length"]), len(rewards)
        tokens = row_sum(rows["loss_mask"].float(), row, num)
        played = tokens > 0
        spread = group_spread(rewards[played], rows["group"][played])
        stats = {
            "reward/mean": rewards[played].mean(),
            "reward/std": spread.mean(),
            "completion_length": tokens[played].mean(),
            "completion_ended": rows["terminated"][played].float().mean(),
            "groups_zero_signal": (spread < 1e-6).float().mean(),
        }
        stats |= {f"reward/{c}": row_reward(rows, c)[played].nanmean() for c in self.channels}
        if self.config.kl_coef and self.config.kl_in == "reward":
            gap = (rows["logprob"] - rows["reference_logprob"]) * rows["loss_mask"]
            stats["kl"] = gap.sum() / tokens.sum()
        return Batch({f"stats/{k}": v for k, v in stats.items()})


def clip_component(config: ClipConfig) -> Component:
    """`losses.token.policy_loss` on the behaviour log-probabilities."""

    def loss(part: Part, denominator: float) -> Loss:
        return policy_loss(
            part.logprob,
            part.fields["logprob"],
            part.fields["advantage"],
            weight=part.fields["weight"],
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            denominator=denominator,
            count=part.count,
        )

    return Component(loss, metrics=CLIP_METRICS, by_advantage=True)


def kl_component(part: Part, denominator: float) -> Loss:
    """`losses.token.kl_loss`."""
    reference, weight = part.fields["reference_logprob"], part.fields["weight"]
    return kl_loss(part.logprob, reference, weight=weight, denominator=denominator, count=part.count)


def entropy_component(part: Part, denominator: float) -> Loss:
    """`losses.token.entropy_loss`."""
    return entropy_loss(part.entropy, weight=part.fields["weight"], denominator=denominator)
