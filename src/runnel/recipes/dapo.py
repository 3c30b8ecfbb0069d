"""DAPO: GRPO with a higher upper clip, dynamic sampling, a token mean and a penalty for overlong answers.

runnel train dapo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """GRPO with four changes for long answers (llm/algorithms/dapo.py)."""

    max_refills: int = 16
    """Dynamic sampling: a prompt whose completions all got the same reward is replaced by another one, at most so many times in
    a row."""
    dapo: rl.llm.DAPOConfig = field(default_factory=rl.llm.DAPOConfig)


def build(c: Config) -> rl.Experiment:
    """The sampler replaces groups without signal. The rest is in the algorithm."""
    return rl.prompt_graph(c, lambda task: rl.llm.DAPO(c.dapo, channels=task.channels, max_tokens=task.sizes.completion))
