"""A corridor whose end nobody reaches by chance."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LENGTH, LIMIT = 24, 48


class FarEnd(gym.Env):
    """Walk right to the last of 24 cells: reward 1, and the episode ends; 0 everywhere else. A step may go left, but not beyond
    the first cell. A random walk of 48 steps gets there once in some 800 episodes."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 1, (LENGTH,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._x, self._t = 0, 0
        return self._seen(), {}

    def _seen(self) -> Any:
        return np.eye(LENGTH, dtype=np.float32)[self._x]

    def step(self, action: Any) -> Any:
        self._x, self._t = max(self._x + (1 if action else -1), 0), self._t + 1
        there = self._x == LENGTH - 1
        return self._seen(), float(there), there, self._t >= LIMIT, {}

    def get_state(self) -> dict[str, Any]:
        return {"x": self._x}

    def set_state(self, state: dict[str, Any]) -> None:
        self._x, self._t = state["x"], 0
