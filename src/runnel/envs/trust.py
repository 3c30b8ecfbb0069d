"""Removes a repeated check from Gymnasium's own environments.

Gymnasium's classic environments begin each step with `action_space.contains(action)`, which takes a fifth of CartPole's step. A
vector has already checked type, shape and range of all actions (`CpuVector._check_actions`), so for plain choices this second
check is skipped. It stays wherever the action could be another one than the vector has checked: behind a wrapper that may
change it, and in an environment that may ask its space about something else.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import gymnasium as gym


def of_gymnasium(env: gym.Env) -> bool:
    """Whether an environment, or a vector of them, is part of Gymnasium itself."""
    return type(env.unwrapped).__module__.startswith("gymnasium.envs.")


def trusting(env: gym.Env) -> gym.Env:
    """`env`, whose `Discrete` action space accepts every action without a look at it, where that is safe."""
    from gymnasium import spaces

    inner = env.unwrapped
    plain = type(vars(inner).get("action_space")) is spaces.Discrete
    if plain and of_gymnasium(env) and _hands_on(env):
        inner.action_space = _open(inner.action_space)
    return env


def _hands_on(env: gym.Env) -> bool:
    """Whether an action reaches the environment unchanged: every wrapper around it is known not to touch actions."""
    from gymnasium import wrappers

    while env is not env.unwrapped:
        if type(env) not in (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker):
            return False
        env = env.env
    return True


def trusting_vector(vec: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    """The same for a Gymnasium vector environment with one plain choice a row."""
    from gymnasium import spaces

    inner = vec.unwrapped
    plain = inner is vec and of_gymnasium(vec) and type(vec.single_action_space) is spaces.Discrete
    if plain and type(vars(inner).get("action_space")) is spaces.MultiDiscrete:
        inner.action_space = _open(inner.action_space)
    return vec


def _open(space: gym.Space) -> gym.Space:
    """A copy of `space`, with its random generator, that contains every action."""
    found, kind = copy.copy(space), space.__class__
    # a subclass, so that `isinstance` and everything else of the space stay as they are
    found.__class__ = _open_class(kind)
    return found


@cache
def _open_class(kind: type) -> type:
    return type(f"Open{kind.__name__}", (kind,), {"contains": lambda self, x: True})
