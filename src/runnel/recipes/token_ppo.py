"""PPO with a critic on a text task: every token gets its own advantage.

runnel train token_ppo --task reverse --warmup-updates 100 --total-updates 400 --ppo.critic-warmup 20
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """PPO on tokens (llm/algorithms/ppo.py): a critic that starts as a copy of the policy, with an optimiser of its own."""

    ppo: rl.llm.TokenPPOConfig = field(default_factory=rl.llm.TokenPPOConfig)


def build(c: Config) -> rl.Experiment:
    """The critic lives in the learner."""
    return rl.prompt_graph(c, lambda task: rl.llm.TokenPPO(c.ppo, channels=task.channels))
