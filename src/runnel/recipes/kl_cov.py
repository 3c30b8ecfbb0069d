"""KL-Cov: GRPO without a clip that holds the few tokens by which entropy would fall most.

runnel train kl_cov --task reverse --warmup-updates 100 --total-updates 400 --learner.num-minibatches 4
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import clip_cov


@dataclass(frozen=True)
class Config(clip_cov.Config):
    """KL-Cov (llm/algorithms/covariance.py)."""

    covariance: rl.llm.CovarianceConfig = field(
        default_factory=lambda: rl.llm.CovarianceConfig(how="kl", share=2e-3, clip_low=None, clip_high=None)
    )


build = clip_cov.build
