"""CIP from replay: SAC that finds out what its reward comes from, for vectors and a box of continuous actions.

runnel train cip --env Pendulum-v1 --sac.fit-rows 1000
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import sac


@dataclass(frozen=True)
class Config(sac.Config):
    """CIP (agents/cip.py): the recipe `sac` with batches and an actor that know of causes."""

    sac: rl.agents.CIPConfig = field(default_factory=rl.agents.CIPConfig)


def build(c: Config) -> rl.Experiment:
    """The graph of SAC."""
    return sac.build(c, learner=rl.agents.CIPLearner)
