"""TOPR: good completions are imitated, bad ones count only while the policy would still make them; for old rollouts.

runnel train topr --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """TOPR (llm/algorithms/topr.py): up to four versions behind."""

    staleness: rl.StalenessConfig = field(default_factory=lambda: rl.StalenessConfig(mode="window"))
    topr: rl.llm.TOPRConfig = field(default_factory=rl.llm.TOPRConfig)


def build(c: Config) -> rl.Experiment:
    """The reward minus a fixed baseline decides what is good."""
    return rl.prompt_graph(c, lambda task: rl.llm.TOPR(c.topr, channels=task.channels))
