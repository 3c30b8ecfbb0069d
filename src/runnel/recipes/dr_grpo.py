"""Dr. GRPO: GRPO without its biases in length and difficulty.

runnel train dr_grpo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import grpo


@dataclass(frozen=True)
class Config(grpo.Config):
    """Dr. GRPO (llm/algorithms/grpo.py): the advantage is the reward minus the mean of its group. The loss is summed, and
    divided by rows times the token limit."""

    grpo: rl.llm.GRPOConfig = field(default_factory=lambda: rl.llm.GRPOConfig(normalise="none", aggregation="constant"))


build = grpo.build
