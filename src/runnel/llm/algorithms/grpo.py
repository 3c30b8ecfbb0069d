"""GRPO: group-relative policy optimisation, with the choices that its relatives make differently as settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.contracts.learning import Collective
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.core.state import Metrics, State
from runnel.llm.algorithms.base import (
    CLIP_METRICS,
    ClipConfig,
    Component,
    Part,
    PolicyAlgorithm,
    PolicyConfig,
    clipped_loss,
)
from runnel.losses.base import Loss
from runnel.losses.token import entropy_loss
from runnel.ops.credit import relative_advantage


@dataclass(frozen=True)
class GroupConfig(PolicyConfig):
    """Settings of algorithms that compare the completions of a prompt."""

    on_resume: ClassVar[OnResume] = may_change("normalise", "aggregation") | live(
        "entropy_target", "entropy_step", "max_entropy_coef"
    )

    normalise: Literal["group", "batch", "none"] = "group"
    """What a reward minus the mean of its group is divided by: the deviation of the group, that of all rewards of the batch, or
    nothing."""
    aggregation: Literal["sequence", "token", "constant"] = "sequence"
    """The mean of the loss: over the means of completions (sequence), over all tokens (token), or their sum over completions
    times max_tokens (constant)."""
    entropy_target: float | None = bounded(None, above=0)
    """The weight of the entropy bonus starts at entropy_coef, rises after each update whose entropy (in nats by token) was
    below this, and falls after others; it counts only below. None: it stays entropy_coef."""
    entropy_step: float = bounded(1e-4, above=0)
    """How far that weight moves after an update."""
    max_entropy_coef: float = bounded(5e-3, above=0)
    """The highest weight that it rises to."""

    def unused(self) -> dict[str, str]:
        fixed = dict.fromkeys(("entropy_step", "max_entropy_coef"), "the weight of entropy is fixed; set entropy_target")
        return super().unused() | (fixed if self.entropy_target is None else {})


class GroupAlgorithm(PolicyAlgorithm):
    """Base of algorithms that compare the completions of a prompt, and can hold the entropy of the policy at a target: adaptive
    entropy control (He et al. 2025, Skywork-OR1, arXiv:2505.22312, sec. 3.2.5).

        c_0     = entropy_coef
        c_{k+1} = c_k + entropy_step where e_k < entropy_target, else c_k - entropy_step       within [0, max_entropy_coef]
        L_{k+1} = L - c_{k+1} [e_k < entropy_target] mean entropy

    e_k is the mean entropy by trained token in update k, over its optimiser steps. The paper measures it before update k, and
    uses it in that same update; here it is the update before, so that no further forward pass is needed, and the first update
    has no bonus. 0.2 is the paper's target; its step is 0.005, the scripts that it published have ours, 1e-4, and the limit.
    """

    config: GroupConfig

    def __init__(self, config: GroupConfig, *, channels: Mapping[str, float], max_tokens: int = 0) -> None:
        super().__init__(config, channels=channels, max_tokens=max_tokens)
        self.aggregation = config.aggregation
        if config.entropy_target is not None and config.entropy_coef > config.max_entropy_coef:
            fix = f"the weight of entropy starts at entropy_coef = {config.entropy_coef:g}; use at least that"
            raise ConfigError("max_entropy_coef", config.max_entropy_coef, fix)
        self._moved, self._below = 0.0, False

    def credit(self, rewards: Tensor, rows: Batch, collective: Collective) -> Tensor:
        return relative_advantage(rewards, rows["group"], by=self.config.normalise, collective=collective)

    # --------------------------------------------------------------------------------------------------------- entropy
    @property
    def entropy_coef(self) -> float:
        """The weight of the entropy bonus, as far as it has moved."""
        return min(max(self.config.entropy_coef + self._moved, 0.0), self.config.max_entropy_coef)

    @property
    def _bonus(self) -> float:
        """The same, in the next update: it counts only below the target."""
        return self.entropy_coef if self._below else 0.0

    @property
    def components(self) -> Mapping[str, Component]:
        found = super().components
        if self.config.entropy_target is None:
            return found
        # above the target entropy is only measured: then rows without an advantage need no gradient
        loss, measured = (_held_entropy, False) if self._bonus else (_measured_entropy, True)
        entropy = Component(loss, coef=self._bonus, metrics=("entropy/policy",), denominator="policy", by_advantage=measured)
        return {**found, "entropy": entropy}

    def annotate(self, rows: Batch, collective: Collective) -> Batch:
        out = super().annotate(rows, collective)
        if self.config.entropy_target is not None:
            out["stats/entropy/coef"] = torch.tensor(self._bonus, dtype=torch.float64)
        return out

    def adapt(self, metrics: Metrics) -> None:
        """Move the weight of the entropy bonus, by the entropy that an update had."""
        c, entropy = self.config, metrics.get("entropy/policy")
        if c.entropy_target is None or entropy is None:
            return
        self._below = entropy < c.entropy_target
        coef = self.entropy_coef + (c.entropy_step if self._below else -c.entropy_step)
        self._moved = min(max(coef, 0.0), c.max_entropy_coef) - c.entropy_coef

    def state_dict(self) -> State:
        return {"moved": self._moved, "below": self._below}

    def load_state_dict(self, state: State) -> None:
        self._moved, self._below = state["moved"], state["below"]


def _held_entropy(part: Part, denominator: float) -> Loss:
    entropy = part.outputs["entropy"]
    value = entropy_loss(entropy, weight=part.fields["weight"], denominator=denominator).value
    return Loss(value, {"entropy/policy": entropy.detach().sum() / part.count})


def _measured_entropy(part: Part, denominator: float) -> Loss:
    with torch.no_grad():
        return _held_entropy(part, denominator)


@dataclass(frozen=True)
class GRPOConfig(GroupConfig, ClipConfig):
    """Group-relative policy optimisation."""

    on_resume: ClassVar[OnResume] = live("dual_clip")

    dual_clip: float | None = bounded(None, above=1)
    """With a negative advantage the policy ratio stops counting above this, too (3 is usual); None: nowhere."""


class GRPO(GroupAlgorithm):
    """Each completion against the others of its prompt (Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3 and 4).

        A_i = (R_i - mean(R)) / std(R)                                                          within the group
        L   = -1/R sum_i 1/|y_i| sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)  + kl_coef KL

    A group in which every completion got the same reward says nothing (`groups_zero_signal`); it still counts in the mean.

    The settings are those whose effects "Tricks or traps" compares (Liu et al. 2025, arXiv:2508.08221). `normalise` "none" and
    `aggregation` "constant" are Dr. GRPO (Liu et al. 2025, arXiv:2503.20783, sec. 3.2; recipe `dr_grpo`):

        A_i = R_i - mean(R)
        L   = -1/(R max_tokens) sum_i sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)  + kl_coef KL

    `normalise` "batch" and `aggregation` "token" are what that paper ends with (Lite PPO).
    """

    config: GRPOConfig
    metrics = CLIP_METRICS

    def loss(self, part: Part, denominator: float) -> Loss:
        return clipped_loss(part, denominator, self.config, dual_clip=self.config.dual_clip)
