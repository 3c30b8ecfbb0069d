"""Online DPO: the best and the worst completion of each prompt form a pair; the reward decides which is which.

runnel train online_dpo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """DPO on the policy's own completions (llm/algorithms/dpo.py)."""

    dpo: rl.llm.DPOConfig = field(default_factory=rl.llm.DPOConfig)


def build(c: Config) -> rl.Experiment:
    """Groups in which all rewards are equal have no pair."""
    return rl.prompt_graph(c, lambda task: rl.llm.OnlineDPO(c.dpo, channels=task.channels))
