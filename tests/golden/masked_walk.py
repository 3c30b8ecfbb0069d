"""A walk with masks that matter for targets: what is open next is another matter than what is open now."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class MaskedWalk(gym.Env):  # type: ignore[misc]
    """Places 0 to 4; stay, left, right, or a jump by two, each open where it stays in the row. Ends at 4, cut after 7."""

    MOVES = (0, -1, 1, 2)

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(4)
        self._place = self._t = 0

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        mask = np.array([0 <= self._place + move <= 4 for move in self.MOVES], np.int8)
        return np.array([self._place / 2 - 1, self._t / 7], np.float32), {"action_mask": mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._t = int(self.np_random.integers(3)), 0
        return self._seen()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._t, self._place = self._t + 1, self._place + self.MOVES[action]
        assert 0 <= self._place <= 4, "a closed action"
        obs, info = self._seen()
        return obs, -0.1 * abs(self.MOVES[action]) + (self._place == 4), self._place == 4, self._t >= 7, info
