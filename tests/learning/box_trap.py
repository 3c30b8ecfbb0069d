"""The truncation trap with a continuous action, which changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from runnel.envs.toy import TruncationTrap


class BoxTrap(TruncationTrap):
    """Reward 1 for ever, cut every `max_steps`; the action is a number in [-2, 2]."""

    def __init__(self, max_steps: int = 5) -> None:
        super().__init__(max_steps)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step(0)
