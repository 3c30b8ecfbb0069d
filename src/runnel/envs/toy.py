"""Tiny environments with known answers, for tests, examples and measurements. None of them is interesting to solve.

`BadEnv` misbehaves on purpose; `StepTime` makes any environment slow or uneven; each of the others isolates one thing:
truncation, masks, continuous actions, memory, randomness.
"""

from __future__ import annotations

import json
import time
from typing import Literal

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.envs.registry import make_env
from runnel.envs.spaces import Action, Info, StepResult

Obs = NDArray[np.float32]


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

    def step(self, action: NDArray[np.float32]) -> StepResult:
        self._t += 1
        self._x = self._x + 0.2 * np.clip(action, -1.0, 1.0)
        if self.noise:
            self._x = self._x + self.noise * self.np_random.standard_normal(self.dims)
        return self._x.astype(np.float32), -float(self._x @ self._x), False, self._t >= self.max_steps, {}


class Recall(gym.Env):  # type: ignore[misc]
    """A cue is shown at the first step only; after `delay` steps the action that names it earns 1. Without memory the best
    expected return is 1 / `num_cues`.

    Observation: one-hot cue (zeros later) and whether it is time to answer. Actions at other times do nothing.
    """

    def __init__(self, delay: int = 4, num_cues: int = 2) -> None:
        self.delay, self.num_cues = delay, num_cues
        self.observation_space = spaces.Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.action_space = spaces.Discrete(num_cues)
        self._cue = self._t = 0

    def _obs(self) -> Obs:
        obs = np.zeros(self.num_cues + 1, dtype=np.float32)
        if self._t == 0:
            obs[self._cue] = 1.0
        obs[-1] = float(self._t == self.delay)
        return obs

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._cue, self._t = int(self.np_random.integers(self.num_cues)), 0
        return self._obs(), {}

    def step(self, action: int) -> StepResult:
        over = self._t == self.delay
        reward = float(over and int(action) == self._cue)
        self._t += 1
        return self._obs(), reward, over, False, {}


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
        # as text, because its integers have 128 bits, more than a checkpoint's number types hold
        return {"t": self._t, "rng": json.dumps(self.np_random.bit_generator.state)}

    def set_state(self, state: Info) -> None:
        """Undo `get_state`."""
        self._t = int(state["t"])
        self.np_random.bit_generator.state = json.loads(state["rng"])


class StepTime(gym.Wrapper):  # type: ignore[misc]
    """`env` with steps of a set length: `step_ms` milliseconds, of which each step takes a share that is even between
    1 - `jitter` and 1 + `jitter`. A simulator of known speed, for measurements.

    A sleeping step leaves its core to others, as a game server elsewhere does. A `busy` one computes for that much time of
    its own thread, so that two of them on one core take twice as long.
    """

    def __init__(self, step_ms: float = 2.0, jitter: float = 0.0, busy: bool = False, env: str = "CartPole-v1") -> None:
        if not step_ms >= 0.0:
            raise ConfigError("step_ms", step_ms, "use 0 or more milliseconds")
        if not 0.0 <= jitter <= 1.0:
            raise ConfigError("jitter", jitter, "use a share between 0 and 1")
        super().__init__(make_env(env))
        self.step_s, self.jitter, self.busy = step_ms / 1000.0, jitter, busy
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, info

    def step(self, action: Action) -> StepResult:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._pass(self.step_s * (1.0 + self.jitter * self._rng.uniform(-1.0, 1.0)) if self.jitter else self.step_s)
        return obs, float(reward), terminated, truncated, info

    def _pass(self, seconds: float) -> None:
        if not self.busy:
            time.sleep(seconds)
            return
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass


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
