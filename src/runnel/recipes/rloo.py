"""RLOO: REINFORCE with the mean of a prompt's other completions as the baseline.

runnel train rloo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """RLOO (llm/algorithms/reinforce.py)."""

    rloo: rl.llm.ReinforceConfig = field(default_factory=rl.llm.ReinforceConfig)


def build(c: Config) -> rl.Experiment:
    """The plain policy gradient of whole completions."""
    return rl.prompt_graph(c, lambda task: rl.llm.RLOO(c.rloo, channels=task.channels))
