"""SPA: an estimator that learns with the policy shares each trajectory's reward out among its turns.

runnel train spa --task reverse --warmup-updates 100 --total-updates 400 --spa.critic-warmup 20
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """SPA (llm/algorithms/spa.py): the estimator starts as a copy of the policy, and has an optimiser of its own."""

    spa: rl.llm.SPAConfig = field(default_factory=rl.llm.SPAConfig)


def build(c: Config) -> rl.Experiment:
    """The estimator lives in the learner, where others have their critic."""
    return rl.prompt_graph(c, lambda task: rl.llm.SPA(c.spa, channels=task.channels))
