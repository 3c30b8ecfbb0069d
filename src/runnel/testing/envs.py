"""Contract check for environments: says in words what is wrong with one, before a run trips over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.envs.registry import Target, env_name, make_env
from runnel.envs.spaces import MASK, env_spec, flatten_obs, mask_in_obs

_SEED = 12345


def check_env(target: Any, *, kwargs: Mapping[str, Any] | None = None, num_steps: int = 64) -> list[str]:
    """Everything that is wrong with an environment (an instance, or what `env=` takes); an empty list is a pass.

    It plays the same `num_steps` random actions twice under one seed: once to look at every value, once to compare.
    """
    import gymnasium as gym

    env = target if isinstance(target, gym.Env) else make_env(target, kwargs=kwargs)
    found = _Findings()
    missing = [name for name in ("observation_space", "action_space") if not hasattr(env, name)]
    if missing:
        return [f"{_name(target)} has no {' and no '.join(missing)}; set it in __init__"]
    try:
        env_spec(env.observation_space, env.action_space)
        first, second = _play(env, found, num_steps), _play(env, _Findings(), num_steps)
    except ConfigError as error:
        return [str(error)]
    except _BrokenError:
        return found.texts
    finally:
        if env is not target:
            env.close()
    if first != second:
        found.add(
            f"{_name(target)} is not deterministic under a seed: two episodes from reset(seed={_SEED}) with the same actions "
            "differ; draw all randomness from self.np_random and call super().reset(seed=seed)"
        )
    return found.texts


class _BrokenError(Exception):
    """The environment cannot be played on; the findings say why."""


class _Findings:
    """Complaints, each said once."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        if text not in self.texts:
            self.texts.append(text)

    def stop(self, text: str) -> _BrokenError:
        self.add(text)
        return _BrokenError(text)


def _name(target: Target | Any) -> str:
    return env_name(target) if isinstance(target, str | type) else type(target).__name__


def _play(env: Any, found: _Findings, num_steps: int) -> list[Any]:
    """One stretch of play under a fixed seed; returns what happened, in a form that compares exactly."""
    env.action_space.seed(_SEED)
    flatten = flatten_obs(env.observation_space)
    history: list[Any] = []
    obs, info = _reset(env, found)
    for _ in range(num_steps):
        _check_obs(env, obs, found)
        history.append({k: v.tobytes() for k, v in flatten(obs).items()})
        result = _step(env, _action(env, obs, info, found), found)
        obs, reward, terminated, truncated, info = result
        _check_outcome(reward, terminated, truncated, found)
        history.append((str(reward), bool(terminated), bool(truncated)))
        if terminated or truncated:
            _check_obs(env, obs, found)
            obs, info = _reset(env, found)
    return history


def _reset(env: Any, found: _Findings) -> tuple[Any, dict[str, Any]]:
    try:
        result = env.reset(seed=_SEED)
    except TypeError as error:
        raise found.stop(f"reset(seed=...) raised {error}; its signature is reset(self, *, seed=None, options=None)") from error
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        raise found.stop(f"reset returned {_kind(result)}; it must return (observation, info), info being a dict")
    return result


def _step(env: Any, action: Any, found: _Findings) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    try:
        result = env.step(action)
    except Exception as error:
        raise found.stop(f"step({action!r}) raised {type(error).__name__}: {error}") from error
    if not (isinstance(result, tuple) and len(result) == 5 and isinstance(result[4], dict)):
        raise found.stop(
            f"step returned {_kind(result)}; it must return (observation, reward, terminated, truncated, info), "
            "info being a dict"
        )
    return result


def _kind(result: Any) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"


def _action(env: Any, obs: Any, info: dict[str, Any], found: _Findings) -> Any:
    """A random action that the mask, if there is one, allows."""
    mask = obs[MASK] if mask_in_obs(env.observation_space) else info.get(MASK)
    if mask is None:
        return env.action_space.sample()
    mask = np.asarray(mask)
    if mask.shape != (int(env.action_space.n),):
        raise found.stop(f"action_mask has shape {mask.shape}; it must have one entry per action, ({int(env.action_space.n)},)")
    if not mask.any():
        raise found.stop("action_mask allows no action at all; end the episode instead")
    return env.action_space.sample(mask.astype(np.int8))


def _check_obs(env: Any, obs: Any, found: _Findings) -> None:
    _check_leaf(env.observation_space, obs, "the observation", found)


def _check_leaf(space: Any, value: Any, name: str, found: _Findings) -> None:
    from gymnasium import spaces

    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else list(range(len(space.spaces)))
        try:
            parts = [(key, value[key]) for key in keys]
        except (KeyError, IndexError, TypeError) as error:
            raise found.stop(f"{name} lacks {error} of its space {space}") from error
        for key, part in parts:
            _check_leaf(space.spaces[key], part, f"{name}[{key!r}]", found)
    elif not space.contains(value):
        _complain(space, value, name, found)


def _complain(space: Any, value: Any, name: str, found: _Findings) -> None:
    array = np.asarray(value)
    if array.shape != tuple(space.shape):
        raise found.stop(f"{name} has shape {array.shape}, its space says {tuple(space.shape)}")
    if not np.can_cast(array.dtype, space.dtype):
        found.add(f"{name} has dtype {array.dtype}, its space says {space.dtype}")
    elif array.dtype.kind == "f" and not np.isfinite(array).all():
        found.add(f"{name} is not finite")
    else:
        found.add(f"{name} is outside of its space {space}")


def _check_outcome(reward: Any, terminated: Any, truncated: Any, found: _Findings) -> None:
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            found.add(f"{name} is a {type(flag).__name__}; it must be a bool")
    if not isinstance(reward, float | int | np.floating | np.integer) or isinstance(reward, bool):
        found.add(f"reward is a {type(reward).__name__}; it must be a float")
    elif not np.isfinite(reward):
        found.add("reward is not finite")
