"""An environment that is made already, where one is wanted that can be made again: a run makes its own, many of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from runnel.core.errors import ConfigError


def is_env(value: Any) -> bool:
    """Whether `value` is an environment, or a vector of them, that is made already."""
    import gymnasium as gym

    return isinstance(value, gym.Env | gym.vector.VectorEnv)


def remade(env: Any, kwargs: Mapping[str, Any]) -> tuple[str | Callable[..., Any], dict[str, Any]]:
    """What makes `env` again, from the spec that Gymnasium keeps with it: its id and arguments, which any process can use, or,
    where it was wrapped or its limits were changed, a function. `kwargs` are arguments that are given beside it.

    How it shows itself (`render_mode`) is left out: a run draws nothing, and a recording asks for pictures itself.
    """
    import gymnasium as gym

    spec = None if isinstance(env, gym.vector.VectorEnv) else env.spec
    if spec is None or any(w.kwargs is None for w in spec.additional_wrappers):
        raise ConfigError("env", type(env).__name__, _fix(env))
    usual = gym.registry.get(spec.id)
    given = {k: v for k, v in spec.kwargs.items() if k != "render_mode"}
    spec.kwargs = {**given, **kwargs}
    if usual is None or spec.additional_wrappers or spec.max_episode_steps != usual.max_episode_steps or not _plain(given):
        return _maker(spec), {}
    return spec.id, {k: v for k, v in spec.kwargs.items() if k not in usual.kwargs or usual.kwargs[k] != v}


def _maker(spec: Any) -> Callable[..., Any]:
    import gymnasium as gym

    def make(**more: Any) -> Any:
        return gym.make(spec, **more)

    make.__qualname__ = spec.id  # messages and run folders show it
    return make


def _plain(given: Mapping[str, Any]) -> bool:
    """Whether arguments can stand in a config."""
    try:
        return bool(json.loads(json.dumps(given)) == given)
    except (TypeError, ValueError):
        return False


def _fix(env: Any) -> str:
    import gymnasium as gym

    if isinstance(env, gym.vector.VectorEnv):
        return "is a vector that is made already; give one environment (its id, its class or a function), and num_envs=..."
    name = type(env.unwrapped).__name__
    return (
        f"is made already, and cannot be made again from its spec; a run makes its own: give the class (env={name}) or a "
        f"function (env=lambda: {name}(...), with its wrappers)"
    )
