"""MEX from replay: TD3 whose critics prefer to promise more, for sparse rewards and a box of continuous actions.

runnel train mex --env MountainCarContinuous-v0 --td3.eta 0.01
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import td3


@dataclass(frozen=True)
class Config(td3.Config):
    """MEX (agents/mex.py): the recipe `td3` with another loss of the critics."""

    td3: rl.agents.MEXConfig = field(default_factory=rl.agents.MEXConfig)


def build(c: Config) -> rl.Experiment:
    """The graph of TD3."""
    return td3.build(c, learner=rl.agents.MEXLearner)
