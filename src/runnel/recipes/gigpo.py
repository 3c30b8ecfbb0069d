"""GiGPO: trajectories against those of their group, and turns against others that began in the same state.

runnel train gigpo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """GiGPO (llm/algorithms/gigpo.py): credit by turn without a critic, for conversations that come through the same states."""

    gigpo: rl.llm.GiGPOConfig = field(default_factory=rl.llm.GiGPOConfig)


def build(c: Config) -> rl.Experiment:
    """Each trajectory is compared with the others of its group, and each turn with the turns that saw the same."""
    return rl.prompt_graph(c, lambda task: rl.llm.GiGPO(c.gigpo, channels=task.channels))
