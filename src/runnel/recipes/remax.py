"""ReMax: REINFORCE with the reward of the greedy completion as the baseline.

runnel train remax --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """ReMax (llm/algorithms/reinforce.py): the first of `group_size` completions is greedy, and is not trained on."""

    greedy_first: ClassVar[bool] = True
    group_size: int = 2
    """Completions of each prompt, with the greedy one."""
    num_prompts: int = 32
    """Prompts in a batch."""
    remax: rl.llm.ReinforceConfig = field(default_factory=rl.llm.ReinforceConfig)


def build(c: Config) -> rl.Experiment:
    """Each completion is compared with the greedy one of its prompt."""
    return rl.prompt_graph(c, lambda task: rl.llm.ReMax(c.remax, channels=task.channels))
