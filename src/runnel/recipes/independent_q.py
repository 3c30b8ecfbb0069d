"""Independent Q-learning from replay: each agent of a team learns by itself, from what it is paid itself.

runnel train independent_q --env pettingzoo:mpe2.simple_spread_v3 --num-envs 8

Papers also call it IQL, which is another algorithm here: implicit Q-learning, from data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import qmix


@dataclass(frozen=True)
class Config(qmix.Config):
    """Q-learning (agents/qmix.py) with an error for each agent and no mixer."""

    qmix: rl.agents.QMIXConfig = field(default_factory=lambda: rl.agents.QMIXConfig(mixer="none"))


build = qmix.build
