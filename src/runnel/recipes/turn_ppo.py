"""PPO on conversations, with a critic that values the state before each turn.

runnel train turn_ppo --task reverse --warmup-updates 100 --total-updates 400 --turn-ppo.critic-warmup 20
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """PPO on turns (llm/algorithms/turn_ppo.py): a critic that starts as a copy of the policy, with an optimiser of its own."""

    turn_ppo: rl.llm.TurnPPOConfig = field(default_factory=rl.llm.TurnPPOConfig)


def build(c: Config) -> rl.Experiment:
    """The critic lives in the learner."""
    return rl.prompt_graph(c, lambda task: rl.llm.TurnPPO(c.turn_ppo, channels=task.channels))
