"""Environments that break on purpose, in the ways that runs must survive."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np


class Base(gym.Env):  # type: ignore[misc]
    """Nothing happens, for ever; `fault` is called at step `at`."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, at: int = 200) -> None:
        self._at, self._count = at, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        if self._count == self._at:
            self.fault()
        return np.zeros(2, np.float32), 1.0, False, self._count % 10 == 0, {}

    def fault(self) -> None:
        """Break."""


class Hangs(Base):
    def fault(self) -> None:
        time.sleep(600)


class Dies(Base):
    def fault(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Exits(Base):
    def fault(self) -> None:
        os._exit(7)


class Raises(Base):
    def fault(self) -> None:
        raise ValueError("the simulator lost its mind")


class Slow(Base):
    """Each step takes a while, and comes back."""

    def __init__(self, seconds: float = 0.5) -> None:
        super().__init__()
        self._seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self._seconds)
        return super().step(action)
