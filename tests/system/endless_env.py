"""An environment without an end, that has the run stopped in the middle of an evaluation."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np


class Endless(gym.Env):  # type: ignore[misc]
    """The 100th step of an episode sends SIGTERM to the process that the file `flag` names, once; training is over by then."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, flag: str) -> None:
        self._flag, self._count = Path(flag), 0

    def _obs(self) -> Any:
        return np.clip(self.np_random.normal(size=2), -9, 9).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._count += 1
        if self._count == 100 and self._flag.exists():
            pid = int(self._flag.read_text())
            self._flag.unlink()
            os.kill(pid, signal.SIGTERM)
        return self._obs(), float(action), False, False, {}
