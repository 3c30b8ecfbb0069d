"""RAFT: the best completion of each prompt is imitated; or every right one, which is expert iteration.

runnel train raft --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """RAFT and expert iteration (llm/algorithms/raft.py)."""

    raft: rl.llm.RAFTConfig = field(default_factory=rl.llm.RAFTConfig)


def build(c: Config) -> rl.Experiment:
    """What is kept of each group is a demonstration to the policy that made it."""
    return rl.prompt_graph(c, lambda task: rl.llm.RAFT(c.raft, channels=task.channels))
