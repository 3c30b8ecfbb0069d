"""A task that cannot be done without memory: the answer is shown at the first step and asked for at the last."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Recall(gym.Env):  # type: ignore[misc]
    """Sees 1 or -1 once, then zeros; the last of `length` steps pays 1 for the right action of two, and -1 for the other."""

    def __init__(self, length: int = 4) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self._t, self._answer = length, 0, 0

    def _obs(self) -> np.ndarray:
        shown = 2.0 * self._answer - 1.0 if self._t == 0 else 0.0
        return np.array([shown, self._t == self.length - 1], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._t, self._answer = 0, int(self.np_random.integers(2))
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._t += 1
        ended = self._t >= self.length
        reward = (1.0 if action == self._answer else -1.0) if ended else 0.0
        return self._obs(), reward, ended, False, {}
