"""Dr. GRPO: GRPO without its biases in length and difficulty.

runnel train dr_grpo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Dr. GRPO (llm/algorithms/grpo.py)."""

    grpo: rl.llm.GRPOConfig = field(default_factory=rl.llm.GRPOConfig)


def build(c: Config) -> rl.Experiment:
    """Rewards minus the group's mean; the batch's sum over rows times the longest completion."""
    return rl.prompt_graph(c, lambda task: rl.llm.DrGRPO(c.grpo, channels=task.channels, max_tokens=task.sizes.completion))
