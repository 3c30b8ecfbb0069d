"""DAPO: GRPO with four changes for long answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.resuming import OnResume, live, may_change
from runnel.llm.algorithms.grpo import GRPO, GRPOConfig
from runnel.llm.learning.batches import token_owner
from runnel.ops.credit import row_sum


@dataclass(frozen=True)
class DAPOConfig(GRPOConfig):
    """Decoupled clip and dynamic sampling."""

    on_resume: ClassVar[OnResume] = may_change("overlong_buffer") | live("overlong_penalty")

    aggregation: Literal["sequence", "token", "constant"] = "token"
    """The mean of the loss: over all tokens (token), over the means of completions (sequence), or their sum over completions
    times max_tokens (constant)."""
    clip_high: float | None = 0.28
    """The policy ratio stops counting above 1 + clip_high: room for tokens that were unlikely."""
    overlong_buffer: int = bounded(0, at_least=0)
    """Last tokens before `max_tokens` over which a completion is punished more and more for its length; 0 for no such
    penalty."""
    overlong_penalty: float = bounded(1.0, at_least=0)
    """What a completion of `max_tokens` loses."""

    def unused(self) -> dict[str, str]:
        penalty = {} if self.overlong_buffer else {"overlong_penalty": "no length is punished; set overlong_buffer"}
        return super().unused() | penalty


class DAPO(GRPO):
    """Decoupled clip and dynamic sampling policy optimisation (Yu et al. 2025, arXiv:2503.14476).

        A_i = (R_i + P_i - mean(R + P)) / std(R + P)                                                     within the group
        L   = -1/N sum_i sum_t min(r_it A_i, clip(r_it, 1 - clip_low, 1 + clip_high) A_i)                N tokens in the batch
        P_i = -overlong_penalty * clip((|y_i| - (max_tokens - buffer)) / buffer, 0, 1)                   eq. 13

    Clip-higher (sec. 3.1), token mean (3.3) and overlong shaping (3.4) are here. Dynamic sampling (3.2) is the sampler's
    `max_refills`: groups without signal never reach the learner, and other prompts take their place.
    """

    config: DAPOConfig

    def __init__(self, config: DAPOConfig, *, channels: Mapping[str, float], max_tokens: int) -> None:
        super().__init__(config, channels=channels, max_tokens=max_tokens)
        if not 0 <= config.overlong_buffer <= max_tokens:
            raise ConfigError("dapo.overlong_buffer", config.overlong_buffer, f"must lie within max_tokens = {max_tokens}")

    def shaped(self, rewards: Tensor, rows: Batch) -> Tensor:
        return super().shaped(rewards, rows) + self.penalty(rows)

    def penalty(self, rows: Batch) -> Tensor:
        """What each trajectory loses for its length. `[B]`"""
        c, num = self.config, len(rows["group"])
        if not c.overlong_buffer:
            return torch.zeros(num)
        length = row_sum(rows["loss_mask"].float(), token_owner(rows), num)
        over = (length - (self.max_tokens - c.overlong_buffer)) / c.overlong_buffer
        return -c.overlong_penalty * over.clamp(0.0, 1.0)

    def stats(self, rows: Batch, rewards: Tensor) -> Batch:
        return Batch(super().stats(rows, rewards) | {"stats/overlong_penalty": self.penalty(rows).mean()})
