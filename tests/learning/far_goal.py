"""A goal that nobody finds by chance: the reward is 1 there, and 0 everywhere else."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class FarGoal(gym.Env):
    """x' = x + 0.2 a from near 0, |a| <= 1, 20 steps. At x >= 2.4 the episode ends with reward 1: twelve full steps to the
    right. Uniformly random actions get as far as 0.5 (one standard deviation)."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._x, self._t = float(self.np_random.uniform(-0.1, 0.1)), 0
        return np.array([self._x], np.float32), {}

    def step(self, action: Any) -> Any:
        self._x, self._t = self._x + 0.2 * float(np.clip(action[0], -1.0, 1.0)), self._t + 1
        there = self._x >= 2.4
        return np.array([self._x], np.float32), float(there), there, self._t >= 20, {}
