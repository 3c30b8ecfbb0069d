"""GRPO-RoC: GRPO on a part of each group; of right trajectories, those with clean tool calls are preferred.

runnel train grpo_roc --task reverse --warmup-updates 100 --total-updates 400 --group-size 16
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """GRPO-RoC (llm/algorithms/grpo_roc.py): `group_size` trajectories are sampled, and `grpo_roc.keep` of them trained on."""

    group_size: int = 16
    """Completions of each prompt."""
    grpo_roc: rl.llm.GRPORoCConfig = field(default_factory=rl.llm.GRPORoCConfig)


def build(c: Config) -> rl.Experiment:
    """What is kept of a group depends on the seed and on its tokens."""
    return rl.prompt_graph(c, lambda task: rl.llm.GRPORoC(c.grpo_roc, channels=task.channels, seed=c.seed))
