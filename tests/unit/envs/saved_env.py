"""Environments whose state can be saved in the middle of an episode."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from runnel.core.state import State


class Walk(gym.Env):
    """A noisy walk: shows where it is and a random number; pays where it is; masks one of its three actions."""

    step_size = 1.0

    def __init__(self, masked: bool = False, in_obs: bool = False) -> None:
        self._masked, self._in_obs = masked or in_obs, in_obs
        own = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = spaces.Dict(own=own, action_mask=spaces.MultiBinary(3)) if in_obs else own
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        assert not options, "what begins at a state is not told so here"
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return self._seen()

    def _seen(self) -> Any:
        own = np.array([self.x, self.np_random.random()], np.float32)
        mask = np.arange(3) != int(self.x) % 3
        obs = {"own": own, "action_mask": mask.astype(np.int8)} if self._in_obs else own
        return obs, {"action_mask": mask} if self._masked and not self._in_obs else {}

    def step(self, action: int) -> Any:
        self.x, self.t = self.x + self.step_size * (int(action) - 1), self.t + 1
        obs, info = self._seen()
        return obs, self.x, False, self.t >= 12, info

    def get_state(self) -> State:
        return {"x": self.x, "t": self.t, "rng": self.np_random.bit_generator.state}

    def set_state(self, state: State) -> None:
        self.x, self.t = state["x"], state["t"]
        self.np_random.bit_generator.state = state["rng"]


class LongerSteps(Walk):
    """Another version of it."""

    step_size = 2.0


class OwnNoise(Walk):
    """Draws its noise from a generator that no seed reaches, and that goes on from one episode to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = random.Random()

    def _seen(self) -> Any:
        obs, info = super()._seen()
        return np.array([obs[0], self.noise.random()], np.float32), info

    def get_state(self) -> State:
        version, numbers, gauss = self.noise.getstate()
        return {**super().get_state(), "noise": [version, list(numbers), gauss]}

    def set_state(self, state: State) -> None:
        super().set_state(state)
        version, numbers, gauss = state["noise"]
        self.noise.setstate((version, tuple(numbers), gauss))


class Picture(Walk):
    """Shows a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (1, 8, 8), np.uint8)

    def _seen(self) -> Any:
        return np.full((1, 8, 8), 128 + int(self.x), np.uint8), {}


class NoState(gym.Env):
    """Its state cannot be saved."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 0.0, True, False, {}
