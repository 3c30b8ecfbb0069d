"""GSPO: group-relative optimisation with the ratio and the clip of whole sequences.

runnel train gspo --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """GSPO (llm/algorithms/gspo.py)."""

    gspo: rl.llm.GSPOConfig = field(default_factory=rl.llm.GSPOConfig)


def build(c: Config) -> rl.Experiment:
    """Each completion is compared with the others of its prompt, and clipped as a whole."""
    return rl.prompt_graph(c, lambda task: rl.llm.GSPO(c.gspo, channels=task.channels, max_tokens=task.sizes.completion))
