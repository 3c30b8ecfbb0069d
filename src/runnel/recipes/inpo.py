"""INPO: self-play in the game of being preferred, by regression on pairs of own completions.

runnel train inpo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Iterative Nash policy optimisation (llm/algorithms/regression.py)."""

    inpo: rl.llm.INPOConfig = field(default_factory=rl.llm.INPOConfig)


def build(c: Config) -> rl.Experiment:
    """Groups in which all rewards are equal have no pair."""
    return rl.prompt_graph(c, lambda task: rl.llm.INPO(c.inpo, channels=task.channels))
