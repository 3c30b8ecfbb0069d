"""VDN from replay: a team that is paid together learns values of its agents that add up to that of the team.

runnel train vdn --env pettingzoo:mpe2.simple_spread_v3 --num-envs 8
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import qmix


@dataclass(frozen=True)
class Config(qmix.Config):
    """QMIX (agents/qmix.py) with a sum in place of its mixer."""

    qmix: rl.agents.QMIXConfig = field(default_factory=lambda: rl.agents.QMIXConfig(mixer="vdn"))


build = qmix.build
