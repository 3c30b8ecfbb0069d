"""Environments that do not ask again whether an action is in their space.

Gymnasium's classic environments begin each step with `action_space.contains(action)`, a fifth of CartPole's step. A vector has
already held all actions against the space in one comparison, so for plain choices the question is answered once.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any


def trusting(env: Any) -> Any:
    """`env`, whose own `Discrete` action space says yes to everything that its vector lets through."""
    from gymnasium import spaces

    inner = env.unwrapped
    if type(vars(inner).get("action_space")) is spaces.Discrete:
        inner.action_space = _open(inner.action_space)
    return env


def trusting_vector(vec: Any) -> Any:
    """The same for a Gymnasium vector environment with one plain choice a row."""
    from gymnasium import spaces

    inner = vec.unwrapped
    plain = type(vec.single_action_space) is spaces.Discrete
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
