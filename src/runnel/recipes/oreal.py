"""OREAL: right answers are imitated, the more so the rarer they are, and wrong ones pushed away.

runnel train oreal --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """OREAL (llm/algorithms/oreal.py)."""

    oreal: rl.llm.OREALConfig = field(default_factory=rl.llm.OREALConfig)


def build(c: Config) -> rl.Experiment:
    """Right and wrong completions have means of their own."""
    return rl.prompt_graph(c, lambda task: rl.llm.OREAL(c.oreal, channels=task.channels))
