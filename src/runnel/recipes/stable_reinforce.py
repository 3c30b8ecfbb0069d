"""StableReinforce: REINFORCE++ whose ratio cannot overflow, and which leaves out advantages three deviations away.

runnel train stable_reinforce --task reverse --warmup-updates 100 --total-updates 400
"""

from __future__ import annotations

from dataclasses import dataclass, field

import runnel as rl
from runnel.recipes import reinforce_plus_plus


@dataclass(frozen=True)
class Config(reinforce_plus_plus.Config):
    """StableReinforce (llm/algorithms/reinforce_plus_plus.py)."""

    reinforce_plus_plus: rl.llm.ReinforcePPConfig = field(
        default_factory=lambda: rl.llm.ReinforcePPConfig(max_advantage=3.0, max_log_ratio=6.9)
    )


build = reinforce_plus_plus.build
