"""REBEL: the log-ratio of two completions is fitted to the difference of their rewards.

runnel train rebel --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Regression to relative rewards (llm/algorithms/regression.py)."""

    rebel: rl.llm.REBELConfig = field(default_factory=rl.llm.REBELConfig)


def build(c: Config) -> rl.Experiment:
    """Groups in which all rewards are equal have no pair."""
    return rl.prompt_graph(c, lambda task: rl.llm.REBEL(c.rebel, channels=task.channels))
