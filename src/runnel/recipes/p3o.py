"""P3O: PPO on pairs of completions of one prompt, which learns from differences of rewards alone.

runnel train p3o --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """P3O (llm/algorithms/p3o.py)."""

    p3o: rl.llm.P3OConfig = field(default_factory=rl.llm.P3OConfig)


def build(c: Config) -> rl.Experiment:
    """All pairs of a group are compared: `group_size` 2 is the paper's."""
    return rl.prompt_graph(c, lambda task: rl.llm.P3O(c.p3o, channels=task.channels))
