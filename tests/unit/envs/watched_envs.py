"""Environments that can, or cannot, be watched."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Counter(gym.Env[Any, Any]):
    """Counts to three; nothing to see."""

    observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.at = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.at = 0
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self.obs(), float(self.at), self.at == 3, False, {}

    def obs(self) -> Any:
        return np.array([self.at], np.float32)


class Drawn(Counter):
    """Draws itself: 5 x 7 pixels of its count."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((5, 7, 3), 60 * self.at, np.uint8)


class Seen(Counter):
    """Draws nothing, but what it shows the policy is an image."""

    observation_space = spaces.Box(0, 255, (8, 8), np.uint8)

    def obs(self) -> Any:
        return np.full((8, 8), 10 * self.at, np.uint8)


class Broken(Drawn):
    def render(self) -> Any:
        raise RuntimeError("no screen")


class Odd(Drawn):
    def render(self) -> Any:
        return np.zeros((5, 7))
