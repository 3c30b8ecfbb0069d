"""An environment that is told what to play: the first number of a task is its reward, the second how long it lasts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Tasked(gym.Env):
    """Shows its task, the step and a random number; pays the first number of the task. `ignores`: it plays what it likes."""

    def __init__(self, ignores: bool = False) -> None:
        self.observation_space = spaces.Box(-2.0, 2.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.task_space = spaces.Box(np.array([0.0, -1.0], np.float32), np.array([1.0, 1.0], np.float32))
        self.ignores = ignores

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.task = self.np_random.uniform([0.0, -1.0], 1.0).astype(np.float32)
        if options and not self.ignores:
            assert self.task_space.contains(options["task"])
            self.task = options["task"]
        self.t = 0
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return np.array([*self.task, self.t / 10, self.np_random.random()], np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over = self.t >= 2 + int(2 * (self.task[1] + 1))
        return self._seen(), float(self.task[0]), over, False, {}


class NoBox(Tasked):
    """Its tasks have no bounds."""

    def __init__(self) -> None:
        super().__init__()
        self.task_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
