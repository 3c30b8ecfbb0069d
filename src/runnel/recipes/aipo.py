"""AIPO: truncated importance weights, for rollouts that may be several versions old.

runnel train aipo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """AIPO (llm/algorithms/aipo.py): up to four versions behind."""

    staleness: rl.StalenessConfig = field(default_factory=lambda: rl.StalenessConfig(mode="window"))
    aipo: rl.llm.AIPOConfig = field(default_factory=rl.llm.AIPOConfig)


def build(c: Config) -> rl.Experiment:
    """Actors make completions while the learner trains; the weight of a token is the new probability over the old one."""
    return rl.prompt_graph(c, lambda task: rl.llm.AIPO(c.aipo, channels=task.channels, max_tokens=task.sizes.completion))
