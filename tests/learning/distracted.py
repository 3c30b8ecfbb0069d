"""A place to be held, beside numbers and an action that have nothing to do with it."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Distracted(gym.Env):
    """v' = 0.5 v + 0.2 a_0, x' = x + v', 20 steps, reward -|x'|, or with `sparse` 1 where |x'| < 0.1. The observation is x, v
    and `noise` numbers that walk at random (n' = 0.9 n + 0.44 normal); all actions but the first do nothing."""

    def __init__(self, noise: int = 12, idle: int = 1, sparse: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2 + noise,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1 + idle,), np.float32)
        self._num, self._sparse = noise, sparse

    def _seen(self) -> Any:
        return np.array([self._x, self._v, *self._noise], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._x, self._v, self._t = float(self.np_random.uniform(-1.0, 1.0)), 0.0, 0
        self._noise = self.np_random.normal(size=self._num)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self._v = 0.5 * self._v + 0.2 * float(np.clip(action[0], -1.0, 1.0))
        self._x, self._t = self._x + self._v, self._t + 1
        self._noise = 0.9 * self._noise + 0.44 * self.np_random.normal(size=self._num)
        reward = float(abs(self._x) < 0.1) if self._sparse else -abs(self._x)
        return self._seen(), reward, False, self._t >= 20, {}
