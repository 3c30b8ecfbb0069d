"""Environments and small tools for the contract tests of vectors."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from runnel.envs.toy import TruncationTrap
from runnel.envs.vector.measure import random_actions


class Walk(gym.Env):  # type: ignore[misc]
    """A random walk that ends at random, cut at 30 steps: every draw from its own generator."""

    def __init__(self, dims: int = 2) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (dims,), np.float32)
        self.action_space = gym.spaces.Discrete(3)
        self._x, self._t = np.zeros(dims), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._x, self._t = self.np_random.normal(size=self._x.shape), 0
        return self._x.astype(np.float32), {}

    def step(self, action: Any) -> Any:
        self._x = self._x + (int(action) - 1) + 0.1 * self.np_random.normal(size=self._x.shape)
        self._t += 1
        over = bool(self.np_random.random() < 0.08)
        return self._x.astype(np.float32), float(self._x[0]), over, self._t >= 30, {}


class PricedWalk(Walk):
    """A walk that costs 1 wherever its first number is above 0, and says what its second number is: both follow from what a
    step shows."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"costs": {"hazard": float(obs[0] > 0)}, "forward": float(obs[1])}


class PricedVector(SyncVectorEnv):
    """A user's vector class of such walks, in any of Gymnasium's autoreset modes."""

    def __init__(self, num_envs: int, autoreset_mode: Any = AutoresetMode.NEXT_STEP) -> None:
        super().__init__([PricedWalk] * num_envs, autoreset_mode=autoreset_mode)


class PricedSameStep(SyncVectorEnv):
    """The same, which resets itself in the same step: the info of a last step comes in `final_info`."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([PricedWalk] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class PricedCartPole(CartPoleVectorEnv):
    """CartPole with such numbers, which resets itself one step late."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "hazard": obs[:, 0] > 0, "rewards": {"forward": obs[:, 1].copy()}}


class Frames(gym.Env):  # type: ignore[misc]
    """Images whose every pixel is the step number; ends after `length` steps."""

    def __init__(self, length: int = 6, shape: tuple[int, ...] = (5, 7)) -> None:
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self._t = length, 0

    def _obs(self) -> Any:
        return np.full(self.observation_space.shape, self._t, np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 1
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return self._obs(), 1.0, self._t > self.length, False, {}


class Breaks(TruncationTrap):
    """Shows its step number; breaks once, at step `at` of the episode whose seed is `seed`: raises, dies or hangs."""

    def __init__(self, how: str = "raise", at: int = 3, max_steps: int = 6, seed: int = -1) -> None:
        super().__init__(max_steps)
        self.observation_space = gym.spaces.Box(0.0, np.inf, (1,), np.float32)
        self.how, self.at, self.bad_seed, self._seed = how, at, seed, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._seed = seed if seed is not None else 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        _, reward, terminated, truncated, info = super().step(action)
        if self._t == self.at and self._seed == self.bad_seed:
            if self.how == "raise":
                raise RuntimeError("the environment broke")
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600.0)
        return np.array([self._t], np.float32), reward, terminated, truncated, info


class AlwaysBreaks(Breaks):
    """Breaks at step 2 of every episode."""

    def __init__(self, how: str = "raise") -> None:
        super().__init__(how, at=2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.bad_seed = seed if seed is not None else 0
        return super().reset(seed=seed, options=options)


class WalkVector(SyncVectorEnv):
    """A user's vector class, in any of Gymnasium's autoreset modes."""

    def __init__(self, num_envs: int, autoreset_mode: Any = AutoresetMode.NEXT_STEP) -> None:
        super().__init__([Walk] * num_envs, autoreset_mode=autoreset_mode)


class WalkSameStep(SyncVectorEnv):
    """A user's vector class that resets itself in the same step."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([Walk] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


class WalkNextStep(SyncVectorEnv):
    """A user's vector class that resets itself one step late, with its state in objects."""

    def __init__(self, num_envs: int) -> None:
        super().__init__([Walk] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def actions_of(vector: Any, steps: int, seed: int = 0) -> list[torch.Tensor]:
    """Random actions that need no look at masks."""
    rng = np.random.default_rng(seed)
    return [random_actions(vector, rng) for _ in range(steps)]


def record(vector: Any, actions: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """Everything that `actions` do, copied."""
    log = []
    for a in actions:
        vector.send(a)
        out = vector.recv()
        n = len(out.final_rows)
        flags = (out.reward.clone(), out.terminated.clone(), out.truncated.clone(), list(out.final_rows))
        obs = {k: x.clone() for k, x in out.obs.items()}
        log.append((obs, {k: x[:n].clone() for k, x in out.final_obs.items()}, flags))
    return log, [(e.env, e.total, e.length) for e in vector.episodes()]


def same(a: Any, b: Any) -> bool:
    """Whether two records are equal, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
