"""PPO-max: PPO with a critic, with rewards and advantages in bounds; macro actions (MA-RLHF) and filters (PF-PPO) as settings.

runnel train ppo_max --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """PPO-max (llm/algorithms/ppo_max.py)."""

    ppo_max: rl.llm.PPOMaxConfig = field(default_factory=rl.llm.PPOMaxConfig)


def build(c: Config) -> rl.Experiment:
    """A critic values tokens, or macro actions of several tokens."""
    return rl.prompt_graph(c, lambda task: rl.llm.PPOMax(c.ppo_max, channels=task.channels))
