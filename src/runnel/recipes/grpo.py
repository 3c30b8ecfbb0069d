"""GRPO on a text task with a verifiable reward, after an optional supervised warm-up.

runnel train grpo --task reverse --warmup-updates 100 --total-updates 400
runnel train grpo --task my_task.py:make_task --model path/to/model
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """GRPO (llm/algorithms/grpo.py): `num_prompts` groups of `group_size` completions an update."""

    grpo: rl.llm.GRPOConfig = field(default_factory=rl.llm.GRPOConfig)


def build(c: Config) -> rl.Experiment:
    """Each completion is compared with the others of its prompt."""
    return rl.prompt_graph(c, lambda task: rl.llm.GRPO(c.grpo, channels=task.channels, max_tokens=task.sizes.completion))
