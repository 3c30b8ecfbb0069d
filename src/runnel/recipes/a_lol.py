"""A-LoL: only completions that are better than the mean of their prompt are learned from, as one action each; for old rollouts.

runnel train a_lol --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Advantage-leftover lunch (llm/algorithms/a_lol.py): up to four versions behind."""

    staleness: rl.StalenessConfig = field(default_factory=lambda: rl.StalenessConfig(mode="window"))
    a_lol: rl.llm.ALoLConfig = field(default_factory=rl.llm.ALoLConfig)


def build(c: Config) -> rl.Experiment:
    """The importance weight of a whole completion is kept within bounds."""
    return rl.prompt_graph(c, lambda task: rl.llm.ALoL(c.a_lol, channels=task.channels))
