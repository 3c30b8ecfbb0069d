"""Clip-Cov: GRPO that leaves alone the few tokens by which entropy would fall most.

runnel train clip_cov --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl


@dataclass(frozen=True)
class Config(rl.PromptConfig):
    """Clip-Cov and KL-Cov (llm/algorithms/covariance.py)."""

    covariance: rl.llm.CovarianceConfig = field(default_factory=rl.llm.CovarianceConfig)


def build(c: Config) -> rl.Experiment:
    """What is chosen depends on the seed and on the tokens."""
    return rl.prompt_graph(
        c, lambda task: rl.llm.Covariance(c.covariance, channels=task.channels, max_tokens=task.sizes.completion, seed=c.seed)
    )
