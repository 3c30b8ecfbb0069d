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
    """The advantage is the reward minus the mean of its group. The loss is summed, and divided by rows times the token
    limit."""
    return rl.prompt_graph(c, lambda task: rl.llm.DrGRPO(c.grpo, channels=task.channels, max_tokens=task.sizes.completion))
