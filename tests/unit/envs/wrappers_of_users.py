"""Wrappers as a user writes them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Plus(gym.ObservationWrapper):  # type: ignore[misc]
    """Adds 1 to every number."""

    def observation(self, observation: Any) -> Any:
        return (observation + 1).astype(np.float32)


class Double(gym.ObservationWrapper):  # type: ignore[misc]
    """Doubles every number."""

    def observation(self, observation: Any) -> Any:
        return (observation * 2).astype(np.float32)


def five(env: Any) -> Any:
    """Episodes of five steps."""
    return gym.wrappers.TimeLimit(env, 5)


def wide(env: Any) -> Any:
    """Another shape, as a network must see it."""
    space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: np.concatenate([obs, obs]).astype(np.float32), space)


def needs_more(env: Any, amount: int) -> Any:
    return env


def nothing(env: Any) -> Any:
    return None


NUMBER = 3
