"""What an algorithm on tokens is: a rule that annotates rows, and the loss components that its annotations feed.

An annotation says for every token of which kind it is (`component`), how much it counts (`weight`) and in which direction it is
pushed (`advantage`). The learner sums the components and never learns an algorithm's name.

`PolicyAlgorithm` is what policy algorithms share: the trajectory's reward, credit spread over the tokens of its rows, and the
optional KL and entropy components. An algorithm overrides `credit` (how good was a trajectory) or, where turns or tokens of one
trajectory differ, `token_credit`; then `loss` (of the tokens), and perhaps `aggregation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch
from runnel.core.resuming import NEXT_UPDATE, OnResume, live, may_change
from runnel.core.state import Metrics, State
from runnel.llm.algorithms.turns import Turns
from runnel.llm.learning.batches import EXTERNAL, NONE, PAIR, POLICY, SCORE, SFT, MicroBatch, token_owner
from runnel.losses.base import Loss
from runnel.losses.token import entropy_loss, kl_loss, policy_loss
from runnel.ops.credit import group_spread, row_index, row_sum
from runnel.ops.turns import duration_weights, spread_turns, turn_sum

__all__ = ["EXTERNAL", "NONE", "PAIR", "POLICY", "SCORE", "SFT", "Aggregation", "Algorithm", "Component", "Part"]

Aggregation = Literal["token", "sequence", "sum", "constant"]
"""How tokens make a batch's mean: over all tokens; over the means of trajectories; over their sums; over trajectories times a
constant."""


@dataclass(frozen=True)
class Part:
    """The tokens of one component in a micro-batch. All tensors are `[M]`.

    `outputs` are what the models compute for the tokens, with gradients: `logprob` and `entropy` of the policy (at the
    component's temperature), `score` of a reward model, `value` of the critic; those that the batch's components use. `fields`
    are the annotations, such as the recorded `logprob`. `row` and `unit` are numbered from 0. `count` is the number of tokens
    of the component in the global batch, `version` that of the weights at the start of the update.
    """

    outputs: Batch
    fields: Batch
    row: Tensor
    unit: Tensor
    num_rows: int
    num_units: int
    count: float
    version: int

    @staticmethod
    def of(part: MicroBatch, kind: int, outputs: Batch, *, count: float, version: int) -> Part:
        """The tokens of `kind`."""
        # most micro-batches hold one kind: a slice of everything makes views, where an index would copy
        at = slice(None) if len(part.kinds[kind]) == len(part.target) else part.kinds[kind]
        fields, outputs = part.fields.map(lambda x: x[at]), outputs.map(lambda x: x[at])
        return Part(outputs, fields, part.row[at], part.unit[at], part.num_rows, part.num_units, count, version)


@dataclass(frozen=True)
class Component:
    """One term of a loss, on the tokens of one kind.

    `loss(part, denominator)` divides by `denominator/<name>` of the global batch (`denominator` names another's). `uses` says
    which model it trains. `metrics` names what it shows. It trains from the algorithm's batch number `start` on. With
    `by_advantage`, tokens whose advantage is 0 have no gradient. `tempered`: log-probabilities are those of what rollouts were
    sampled from, at their temperature; otherwise the model's own, at 1. With `by_denominator` the metrics are means over the
    denominator, otherwise over the component's tokens.
    """

    loss: Callable[[Part, float], Loss]
    kind: int = POLICY
    coef: float = 1.0
    uses: Literal["logprob", "score", "value"] = "logprob"
    metrics: tuple[str, ...] = ()
    denominator: str = ""
    start: int = 0
    by_advantage: bool = False
    tempered: bool = True
    by_denominator: bool = False


class Algorithm(Protocol):
    """An annotation rule and its components.

    `needs` names per-token fields that the learner computes first, without gradients: `reference_logprob`, `proximal_logprob`
    (of the weights at the start of the update), `external_logprob` (of the same, for tokens that no policy made), `value` (of
    the critic); and of rows that say which are `mismatched`, `mismatched_logprob` (as `proximal_logprob`, of these rows alone).
    """

    @property
    def needs(self) -> frozenset[str]: ...

    @property
    def components(self) -> Mapping[str, Component]: ...

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        """Joined rows (`batches.join_rows`, with the fields that it needs) with annotations.

        Per token `[N]`: `tokens`, `component`, `weight`, `advantage`, and what the components read. Per row `[R]`:
        `row_length`, `row_owner`, `unit` (rows of one unit stay together), `denominator/<component>` (the row's share of it).
        `stats/<name>`: scalars to show; NaN where nothing was measured.
        """
        ...


@runtime_checkable
class HasConfig(Protocol):
    """An algorithm that reads its settings from a config at every batch, so that the live ones may change between two."""

    config: Any


@runtime_checkable
class Adapts(Protocol):
    """An algorithm that moves a number of its components after each update on its rows, by what the update measured."""

    def adapt(self, metrics: Metrics) -> None:
        """Take in the metrics of an update, which are those of all ranks."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


def metrics_of(active: Mapping[str, Component]) -> list[str]:
    """The metrics of the components that train."""
    return [f"loss/{name}" for name in active] + [metric for c in active.values() for metric in c.metrics]


def name_components(algorithms: Mapping[str, Algorithm]) -> tuple[dict[str, Component], dict[str, str]]:
    """The components of all algorithms by name, and the reader of each."""
    found: dict[str, Component] = {}
    readers: dict[str, str] = {}
    for reader, algorithm in algorithms.items():
        for name, component in algorithm.components.items():
            if name in found:
                fix = f"readers {readers[name]!r} and {reader!r} both have a loss component {name!r}; names must be unique"
                raise ConfigError("algorithms", reader, fix)
            found[name], readers[name] = component, reader
    return found, readers


def aggregate(
    mask: Tensor, row_length: Tensor, row_owner: Tensor, how: Aggregation, *, constant: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Weights of tokens and shares of rows in the denominator. `[N], [R], [R] -> [N], [R]`

    A trajectory counts once, however many rows it has: each has the share of its trained tokens.

    >>> mask, length = torch.tensor([False, True, True, False, True]), torch.tensor([3, 2])
    >>> [x.tolist() for x in aggregate(mask, length, torch.tensor([0, 1]), "sequence")]
    [[0.0, 0.5, 0.5, 0.0, 1.0], [1.0, 1.0]]
    >>> [x.tolist() for x in aggregate(mask[:4], torch.tensor([2, 2]), torch.tensor([0, 0]), "sequence")]
    [[0.0, 0.5, 0.5, 0.0], [0.5, 0.5]]
    >>> [x.tolist() for x in aggregate(mask, length, torch.tensor([0, 1]), "token")]
    [[0.0, 1.0, 1.0, 0.0, 1.0], [2.0, 1.0]]
    """
    row, weight = row_index(row_length), mask.float()
    count = row_sum(weight, row, len(row_length))
    if how == "token":
        return weight, count
    whole = row_sum(count, row_owner, len(row_length)).clamp(min=1.0)[row_owner]
    if how == "sequence":
        weight = weight / whole[row]
    return weight, count / whole * (constant if how == "constant" else 1.0)


def trajectory_reward(rows: Mapping[str, Tensor], channel: str) -> Tensor:
    """The reward of each trajectory in one channel; NaN where it does not apply. `[B]`"""
    if f"rewards/{channel}" not in rows:
        raise DataError(f"segments have no reward channel {channel!r}; name it in the stream, or leave it out of channels")
    return rows[f"rewards/{channel}"]


def sum_channels(rows: Mapping[str, Tensor], channels: Mapping[str, float]) -> Tensor:
    """`sum_c weight_c * rewards/c`, over the channels that apply to a trajectory. `[B]`"""
    return torch.stack([weight * trajectory_reward(rows, c).nan_to_num(0.0) for c, weight in channels.items()]).sum(dim=0)


CLIP_METRICS: tuple[str, ...] = ("clip_fraction", "approx_kl")
OPTIONAL = ("logprob", "policy_version", "reference_logprob", "proximal_logprob", "external_logprob", "value")
"""Fields that go from joined rows into the annotated batch as they are."""


@dataclass(frozen=True)
class PolicyConfig:
    """Settings of every policy algorithm."""

    on_resume: ClassVar[OnResume] = (
        live(
            "kl_coef",
            then=f"{NEXT_UPDATE}; above 0 for the first time, the reference is the policy as it is then",
            switches=False,
        )
        | live("entropy_coef")
        | may_change("kl_in", "duration_power")
    )
    of_turns: ClassVar[tuple[str, ...]] = ("duration_power",)
    """Settings that make a difference only where trajectories are conversations of several turns."""

    kl_coef: float = bounded(0.0, at_least=0)
    """Weight of the KL to a reference policy; 0 keeps no reference."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL counts: as a loss component (the k3 estimator), or subtracted from the reward."""
    entropy_coef: float = bounded(0.0, at_least=0)
    """Weight of the entropy bonus."""
    duration_power: float = bounded(0.0, at_least=0)
    """Turns of conversations count by their duration (of tools and environment) to this power, over the batch's mean of it; 0:
    all alike."""

    def unused(self) -> dict[str, str]:
        """Settings that the algorithm, as it is set, does not read, and why."""
        return {} if self.kl_coef else {"kl_in": "there is no KL; set kl_coef"}


@dataclass(frozen=True)
class ClipConfig(PolicyConfig):
    """Settings of algorithms with a clipped ratio."""

    on_resume: ClassVar[OnResume] = live("clip_low", "clip_high")

    clip_low: float | None = bounded(0.2, above=0)
    """The policy ratio stops counting below 1 - clip_low; None: nowhere."""
    clip_high: float | None = bounded(0.2, above=0)
    """The policy ratio stops counting above 1 + clip_high; None: nowhere."""


class PolicyAlgorithm:
    """Base of the policy algorithms (`base.Algorithm`). `channels` gives each reward channel its weight in what is maximised;
    `max_tokens` is the longest completion."""

    aggregation: Aggregation = "token"
    metrics: ClassVar[tuple[str, ...]] = ()
    """Names of the metrics of `loss`."""
    fresh_only: ClassVar[bool] = False
    """The loss has no importance weight: it is right on samples of the very weights that it changes, and on no others."""

    def __init__(self, config: PolicyConfig, *, channels: Mapping[str, float], max_tokens: int = 0) -> None:
        check_bounds(config)
        if not channels:
            raise ConfigError("channels", dict(channels), "name at least one reward channel with its weight")
        self.config, self.channels, self.max_tokens = config, dict(channels), max_tokens

    # -------------------------------------------------------------------------------------------------- what one overrides
    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        """The advantage of each trajectory. `[B] -> [B]`"""
        raise NotImplementedError

    def token_credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Batch:
        """The `advantage` of each token `[N]` (looked at where `loss_mask` holds), and other annotations that come with it.
        Here each token has the advantage of its trajectory. `rewards` `[B]` are those of `shaped`."""
        return Batch(advantage=self.credit(rewards, rows, collective)[token_owner(rows)])

    def loss(self, part: Part, denominator: float) -> Loss:
        """The loss of the sampled tokens: a sum over them, divided by `denominator`."""
        raise NotImplementedError

    # --------------------------------------------------------------------------------------------------------- algorithm
    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"reference_logprob"} if self.config.kl_coef else ())

    @property
    def components(self) -> Mapping[str, Component]:
        out = {"policy": Component(self.loss, metrics=self.metrics, by_advantage=True)}
        if self.config.kl_coef and self.config.kl_in == "loss":
            out["kl"] = Component(kl_component, coef=self.config.kl_coef, metrics=("kl",), denominator="policy")
        if self.config.entropy_coef:
            out["entropy"] = Component(entropy_component, coef=self.config.entropy_coef, denominator="policy")
        return out

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        mask, length, owner = rows["loss_mask"], rows["row_length"], rows["row_owner"]
        rewards = sum_channels(rows, self.channels)
        weight, share = aggregate(mask, length, owner, self.aggregation, constant=float(self.max_tokens or 1))
        out = Batch({k: rows[k] for k in ("tokens", "row_length", "row_owner", *OPTIONAL) if k in rows})
        out |= {"component": mask.to(torch.int8) * POLICY, "weight": weight, "denominator/policy": share}
        out["unit"] = torch.arange(len(length))
        out |= self.token_credit(self.shaped(rewards, rows), rows, collective)
        out["advantage"] = out["advantage"] * mask
        if self.config.duration_power:
            out["advantage"] = out["advantage"] * self.by_duration(rows, collective)
        return Batch(out | self.stats(rows, rewards))

    def shaped(self, rewards: Tensor, rows: Batch) -> Tensor:
        """Rewards as credit is given for them: minus `kl_coef` times the trajectory's log-ratio to the reference, if that is
        wanted. `[B]`"""
        if not self._kl_in_reward:
            return rewards
        return rewards - self.config.kl_coef * row_sum(_reference_gap(rows), token_owner(rows), len(rewards))

    def turn_rewards(self, rows: Batch, turns: Turns) -> Tensor:
        """What each turn earns, as credit is given for it: over the turns of a trajectory it adds up to its reward, with the
        log-ratio to the reference subtracted where `shaped` does so. `[U]`"""
        earned = turns.rewards(rows, self.channels)
        if not self._kl_in_reward:
            return earned
        return earned - self.config.kl_coef * turn_sum(_reference_gap(rows), turns.token, len(turns))

    @property
    def _kl_in_reward(self) -> bool:
        return self.config.kl_coef > 0 and self.config.kl_in == "reward"

    def by_duration(self, rows: Batch, collective: Collective) -> Tensor:
        """Weights of tokens by how long their turns took (Yang et al. 2025, arXiv:2509.01684: the gradient of an action is
        weighed by its duration, because workers that never wait for each other deliver more of the quick ones). The mean over
        the turns of the global batch is 1. `[N]`"""
        if "duration_s" not in rows:
            fix = "use 0: this stream has no turns, and so no durations"
            raise ConfigError("duration_power", self.config.duration_power, fix)
        weight = duration_weights(rows["duration_s"], power=self.config.duration_power, collective=collective)
        return spread_turns(weight, Turns.of(rows).token)

    def stats(self, rows: Batch, rewards: Tensor) -> Batch:
        """What a user watches; trajectories without a trained token (a baseline) are left out. NaN is what nothing was measured
        of: a channel that judged none."""
        tokens = row_sum(rows["loss_mask"].float(), token_owner(rows), len(rewards))
        played = tokens > 0
        spread = group_spread(rewards[played], rows["group"][played])
        stats = {
            "reward/mean": rewards[played].mean(),
            "reward/std": spread.mean(),
            "completion_length": tokens[played].mean(),
            "completion_ended": rows["terminated"][played].float().mean(),
            "groups_zero_signal": (spread < 1e-6).float().mean(),
        }
        stats |= {f"reward/{c}": trajectory_reward(rows, c)[played].nanmean() for c in self.channels}
        if len(rows["row_length"]) != len(rewards):
            stats["rows_per_trajectory"] = torch.tensor(len(rows["row_length"]) / len(rewards))
        if "turn_row" in rows:
            stats["turns_per_trajectory"] = torch.tensor(len(rows["turn_row"]) / len(rewards))
        if self._kl_in_reward:
            stats["kl"] = _reference_gap(rows).sum() / tokens.sum()
        return Batch({f"stats/{k}": v for k, v in stats.items()})


class ClippedAlgorithm(PolicyAlgorithm):
    """A policy algorithm with PPO's loss on tokens: what differs is the credit."""

    config: ClipConfig
    metrics = CLIP_METRICS

    def loss(self, part: Part, denominator: float) -> Loss:
        return clipped_loss(part, denominator, self.config)


class TrajectoryAlgorithm(PolicyAlgorithm):
    """A policy algorithm whose loss is a sum over the tokens of a trajectory, with one ratio for all of them (or, as it is set,
    one for each)."""

    aggregation: Aggregation = "sum"

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        # the ratio is a product over all rows of a trajectory, so they stay together
        return Batch(super().annotate(rows, collective) | {"unit": rows["row_owner"]})


def trajectory_loss(loss: Callable[..., Loss], part: Part, denominator: float, **own: float) -> Loss:
    """A loss of `losses.token` that is given the trajectory of each token, with settings of its `own`."""
    return loss(
        part.outputs["logprob"],
        part.fields["logprob"],
        part.fields["advantage"],
        row=part.unit,
        num_rows=part.num_units,
        weight=part.fields["weight"],
        denominator=denominator,
        count=part.count,
        **own,
    )


def _reference_gap(rows: Batch) -> Tensor:
    """The log-ratio of behaviour and reference at each sampled token. `[N]`"""
    return (rows["logprob"] - rows["reference_logprob"]) * rows["loss_mask"]


def clipped_loss(
    part: Part,
    denominator: float,
    config: ClipConfig,
    *,
    dual_clip: float | None = None,
    max_log_ratio: float | None = None,
) -> Loss:
    """`losses.token.policy_loss` on the recorded log-probabilities."""
    return policy_loss(
        part.outputs["logprob"],
        part.fields["logprob"],
        part.fields["advantage"],
        weight=part.fields["weight"],
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        dual_clip=dual_clip,
        max_log_ratio=max_log_ratio,
        denominator=denominator,
        count=part.count,
    )


def kl_component(part: Part, denominator: float) -> Loss:
    """`losses.token.kl_loss`."""
    reference, weight = part.fields["reference_logprob"], part.fields["weight"]
    return kl_loss(part.outputs["logprob"], reference, weight=weight, denominator=denominator, count=part.count)


def entropy_component(part: Part, denominator: float) -> Loss:
    """`losses.token.entropy_loss`."""
    return entropy_loss(part.outputs["entropy"], weight=part.fields["weight"], denominator=denominator)
