"""PACS: the reward is a label, and the policy's own log-ratio the score that learns to predict it.

runnel train pacs --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """PACS (llm/algorithms/pacs.py)."""

    pacs: rl.llm.PACSConfig = field(default_factory=rl.llm.PACSConfig)


def build(c: Config) -> rl.Experiment:
    """Cross entropy between the reward and the score of each completion against the others of its prompt."""
    return rl.prompt_graph(c, lambda task: rl.llm.PACS(c.pacs, channels=task.channels))
