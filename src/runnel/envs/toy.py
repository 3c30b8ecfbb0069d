"""Tiny environments with known answers, for tests, examples and measurements. None of them is interesting to solve.

`BadEnv` misbehaves on purpose; `Slow` sleeps; the others isolate one thing each: truncation, masks, Dict observations,
continuous actions, randomness.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runnel.core.errors import ConfigError

Obs = NDArray[np.float32]
Info = dict[str, Any]
StepResult = tuple[Any, float, bool, bool, Info]


class TruncationTrap(gym.Env):  # type: ignore[misc]
    """Reward 1 for ever, cut every `max_steps`: every state is worth 1 / (1 - gamma), unless truncation is taken for an end."""

    def __init__(self, max_steps: int = 5) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.max_steps, self._t = max_steps, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> StepResult:
        self._t += 1
        return np.zeros(1, np.float32), 1.0, False, self._t >= self.max_steps, {}


class MaskedBandit(gym.Env):  # type: ignore[misc]
    """One decision; a random half of the arms is open (`info["action_mask"]`), a closed arm raises. Arm a pays a / (n - 1)."""

    def __init__(self, num_arms: int = 4) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(num_arms)
        self._num_arms = num_arms
        self._mask = np.ones(num_arms, np.int8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._draw()
        return np.ones(1, np.float32), {"action_mask": self._mask}

    def _draw(self) -> None:
        self._mask = np.zeros(self._num_arms, np.int8)
        self._mask[self.np_random.permutation(self._num_arms)[: max(1, self._num_arms // 2)]] = 1

    def step(self, action: int) -> StepResult:
        if not self._mask[action]:
            raise ValueError(f"arm {action} is masked; open arms: {np.flatnonzero(self._mask).tolist()}")
        return np.ones(1, np.float32), float(action) / (self._num_arms - 1), True, False, {"action_mask": self._mask}


class DictGoal(gym.Env):  # type: ignore[misc]
    """Walk along 0..size-1 to a goal: Dict observation with a number and a one-hot place; -0.1 a step, 1 at the goal."""

    def __init__(self, size: int = 5, max_steps: int = 20) -> None:
        self.observation_space = spaces.Dict(
            {"place": spaces.Discrete(size), "goal": spaces.Dict({"offset": spaces.Box(-1.0, 1.0, (1,), np.float32)})}
        )
        self.action_space = spaces.Discrete(2)
        self.size, self.max_steps = size, max_steps
        self._place = self._goal = self._t = 0

    def _obs(self) -> dict[str, Any]:
        offset = np.array([(self._goal - self._place) / (self.size - 1)], np.float32)
        return {"place": self._place, "goal": {"offset": offset}}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Any], Info]:
        super().reset(seed=seed)
        self._place, self._goal = (int(x) for x in self.np_random.permutation(self.size)[:2])
        self._t = 0
        return self._obs(), {}

    def step(self, action: int) -> StepResult:
        self._t += 1
        self._place = min(max(self._place + (1 if action == 1 else -1), 0), self.size - 1)
        terminated = self._place == self._goal
        return self._obs(), 1.0 if terminated else -0.1, terminated, self._t >= self.max_steps, {}


class PointMass(gym.Env):  # type: ignore[misc]
    """Push a point to the origin: x' = x + 0.2 a, |a| <= 1, reward -|x'|^2, `max_steps` long. Quick to learn (a = -5x)."""

    def __init__(self, dims: int = 1, max_steps: int = 20, noise: float = 0.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (dims,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (dims,), np.float32)
        self.dims, self.max_steps, self.noise = dims, max_steps, noise
        self._x, self._t = np.zeros(dims), 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._x, self._t = self.np_random.uniform(-1.0, 1.0, self.dims), 0
        return self._x.astype(np.float32), {}

    def step(self, action: NDArray[np.floating[Any]]) -> StepResult:
        self._t += 1
        self._x = self._x + 0.2 * np.clip(action, -1.0, 1.0)
        if self.noise:
            self._x = self._x + self.noise * self.np_random.standard_normal(self.dims)
        return self._x.astype(np.float32), -float(self._x @ self._x), False, self._t >= self.max_steps, {}


class Counter(gym.Env):  # type: ignore[misc]
    """Shows its step number; ends after `length` steps, or with probability `end_chance` before. Saves and loads itself."""

    def __init__(self, length: int = 10, end_chance: float = 0.0) -> None:
        self.observation_space = spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.end_chance, self._t = length, end_chance, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> StepResult:
        self._t += 1
        ended = self._t >= self.length or bool(self.np_random.random() < self.end_chance)
        return np.array([self._t], np.float32), float(action), ended, False, {}

    def get_state(self) -> Info:
        """The step number and the generator, as plain data."""
        inner = self.np_random.bit_generator.state
        words = {k: str(v) for k, v in inner["state"].items()}
        return {"t": self._t, "words": words, "has_uint32": int(inner["has_uint32"]), "uinteger": int(inner["uinteger"])}

    def set_state(self, state: Info) -> None:
        """Undo `get_state`."""
        self._t = int(state["t"])
        self.np_random.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {k: int(v) for k, v in state["words"].items()},
            "has_uint32": state["has_uint32"],
            "uinteger": state["uinteger"],
        }


class Slow(TruncationTrap):
    """A `TruncationTrap` whose step takes `step_s` seconds."""

    def __init__(self, max_steps: int = 5, step_s: float = 0.001) -> None:
        super().__init__(max_steps)
        self.step_s = step_s

    def step(self, action: int) -> StepResult:
        time.sleep(self.step_s)
        return super().step(action)


class BadEnv(TruncationTrap):
    """Breaks at step `at` of an episode: `nan_obs`, `nan_reward`, `raise`, or `random` (draws outside its seed)."""

    def __init__(self, fault: Literal["nan_obs", "nan_reward", "raise", "random"] = "nan_obs", at: int = 3) -> None:
        super().__init__(max_steps=2 * at + 1)
        if fault not in ("nan_obs", "nan_reward", "raise", "random"):
            raise ConfigError("fault", fault, "use nan_obs, nan_reward, raise or random")
        self.fault, self.at = fault, at

    def step(self, action: int) -> StepResult:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.fault == "random":
            obs[:] = np.random.default_rng().uniform(-1.0, 1.0)
        elif self._t == self.at:
            if self.fault == "raise":
                raise RuntimeError("the environment broke")
            if self.fault == "nan_obs":
                obs[:] = np.nan
            else:
                reward = float("nan")
        return obs, reward, terminated, truncated, info
