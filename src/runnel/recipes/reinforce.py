"""REINFORCE: the plain policy gradient, with the batch's mean reward as the baseline.

runnel train reinforce --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """REINFORCE (llm/algorithms/reinforce.py)."""

    reinforce: rl.llm.ReinforceConfig = field(default_factory=rl.llm.ReinforceConfig)


def build(c: Config) -> rl.Experiment:
    """Each completion is compared with the mean of the batch."""
    return rl.prompt_graph(c, lambda task: rl.llm.Reinforce(c.reinforce, channels=task.channels))
