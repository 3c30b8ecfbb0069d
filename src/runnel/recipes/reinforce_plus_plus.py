"""REINFORCE++: PPO without a critic, on rewards that are normalised over the whole batch, with the KL in them.

runnel train reinforce_plus_plus --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """REINFORCE++ (llm/algorithms/reinforce_plus_plus.py)."""

    reinforce_plus_plus: rl.llm.ReinforcePPConfig = field(default_factory=rl.llm.ReinforcePPConfig)


def build(c: Config) -> rl.Experiment:
    """Every token pays its own KL, and earns what follows it; the mean and the deviation are those of the batch."""
    return rl.prompt_graph(c, lambda task: rl.llm.ReinforcePlusPlus(c.reinforce_plus_plus, channels=task.channels))
