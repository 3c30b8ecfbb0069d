"""LOOP: leave-one-out credit with PPO's clip, without critic and reference.

runnel train loop --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """LOOP (llm/algorithms/loop.py): one copy of the weights, and several optimiser steps on each batch."""

    loop: rl.llm.LOOPConfig = field(default_factory=rl.llm.LOOPConfig)


def build(c: Config) -> rl.Experiment:
    """Each trajectory is compared with the mean of the others of its group."""
    return rl.prompt_graph(c, lambda task: rl.llm.LOOP(c.loop, channels=task.channels))
