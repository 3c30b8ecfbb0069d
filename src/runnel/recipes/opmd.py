"""OPMD: online policy mirror descent (Kimi k1.5), with a square in place of a clip, and a reward for short right answers.

runnel train opmd --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Online policy mirror descent (llm/algorithms/opmd.py)."""

    opmd: rl.llm.OPMDConfig = field(default_factory=rl.llm.OPMDConfig)


def build(c: Config) -> rl.Experiment:
    """The advantage is the reward minus the mean of its group; the square holds the policy to the one that sampled."""
    return rl.prompt_graph(c, lambda task: rl.llm.OPMD(c.opmd, channels=task.channels))
