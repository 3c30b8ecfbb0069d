"""A task on stacked images: which half of the newest frame is bright is the action that pays."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Bright(gym.Env):  # type: ignore[misc]
    """Frames of 10 x 10, the last three stacked; eight steps of one choice each, cut at the end."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (3, 10, 10), np.uint8)
        self.action_space = spaces.Discrete(2)
        self._frames, self._side, self._t = np.zeros((3, 10, 10), np.uint8), 0, 0

    def _show(self) -> np.ndarray:
        self._side = int(self.np_random.integers(2))
        self._frames = np.roll(self._frames, -1, axis=0)
        self._frames[-1] = self.np_random.integers(0, 100, (10, 10))
        self._frames[-1, :, 5 * self._side : 5 * self._side + 5] += 100
        return self._frames.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self._frames = 0, np.zeros((3, 10, 10), np.uint8)
        return self._show(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, self._t = float(action == self._side), self._t + 1
        return self._show(), reward, False, self._t >= 8, {}
