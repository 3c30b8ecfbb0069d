"""Environments that are known: Gymnasium's own, which need not be asked everything that is asked of others.

Gymnasium's classic environments begin each step with `action_space.contains(action)`, a fifth of CartPole's step. A vector has
already held all actions against the space (`HostVector._check_actions`: type, shape and range), so for plain choices the
question is answered once. That holds only where the action that the vector has checked is the one that arrives: with a wrapper
in between that may change it, or in an environment that may ask its space about something else, the question stays.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any


def of_gymnasium(env: Any) -> bool:
    """Whether an environment, or a vector of them, is one that Gymnasium ships."""
    return type(env.unwrapped).__module__.startswith("gymnasium.envs.")


def trusting(env: Any) -> Any:
    """`env`, whose own `Discrete` action space says yes to everything that its vector lets through."""
    from gymnasium import spaces

    inner = env.unwrapped
    plain = type(vars(inner).get("action_space")) is spaces.Discrete
    if plain and of_gymnasium(env) and _hands_on(env):
        inner.action_space = _open(inner.action_space)
    return env


def _hands_on(env: Any) -> bool:
    """Whether an action reaches the environment as it is: every wrapper around it is known to leave it alone."""
    from gymnasium import wrappers

    while env is not env.unwrapped:
        if type(env) not in (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker):
            return False
        env = env.env
    return True


def trusting_vector(vec: Any) -> Any:
    """The same for a Gymnasium vector environment with one plain choice a row."""
    from gymnasium import spaces

    inner = vec.unwrapped
    plain = inner is vec and of_gymnasium(vec) and type(vec.single_action_space) is spaces.Discrete
    if plain and type(vars(inner).get("action_space")) is spaces.MultiDiscrete:
        inner.action_space = _open(inner.action_space)
    return vec


def _open(space: Any) -> Any:
    """A copy of `space` (its random generator too) that has been asked already."""
    found, kind = copy.copy(space), space.__class__
    found.__class__ = _open_class(kind)
    return found


@cache
def _open_class(kind: Any) -> Any:
    return type(f"Open{kind.__name__}", (kind,), {"contains": lambda self, x: True})
