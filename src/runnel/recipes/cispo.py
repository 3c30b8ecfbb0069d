"""CISPO: GRPO whose clip bounds the weight of a token, so that no token loses its gradient.

runnel train cispo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """CISPO (llm/algorithms/cispo.py)."""

    cispo: rl.llm.CISPOConfig = field(default_factory=rl.llm.CISPOConfig)


def build(c: Config) -> rl.Experiment:
    """The weight of a token is its new probability over the old one, within bounds; the gradient is that of its log."""
    return rl.prompt_graph(c, lambda task: rl.llm.CISPO(c.cispo, channels=task.channels, max_tokens=task.sizes.completion))
