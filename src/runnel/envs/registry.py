"""Environments by name: a Gymnasium id, `module:Class`, `file.py:factory`, `tensor:CartPole-v1`, a class or a factory."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.resolve import is_reference, load_object
from runnel.core.spaces import EnvSpec
from runnel.envs.device import TENSOR_ENVS, TensorEnv, TensorVector
from runnel.envs.spaces import flatten_obs
from runnel.envs.vector import SerialVector, VectorEnv, look_at

Target = str | Callable[..., Any]
"""What `env=` accepts."""

_TENSOR = "tensor:"
_MUJOCO = (
    "Ant",
    "HalfCheetah",
    "Hopper",
    "Humanoid",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Pusher",
    "Reacher",
    "Swimmer",
    "Walker2d",
)
_KNOWN = {
    "CartPole-v1": "balance a pole on a cart; discrete, solved at 475",
    "Acrobot-v1": "swing a two-link arm up; discrete, sparse",
    "MountainCar-v0": "drive out of a valley; discrete, hard to explore",
    "Pendulum-v1": "swing a pendulum up and hold it; continuous",
    "MountainCarContinuous-v0": "drive out of a valley; continuous",
    "FrozenLake-v1": "cross the ice without falling in; discrete observation",
    "HalfCheetah-v5": 'run forward; continuous (pip install "runnel[mujoco]")',
    "ALE/Pong-v5": 'Atari Pong from pixels (pip install "runnel[atari]")',
    "tensor:CartPole-v1": "CartPole as tensors on any device, thousands at once",
    "runnel.envs.toy:TruncationTrap": "constant reward, truncated only: tests bootstrapping",
    "runnel.envs.toy:MaskedBandit": "one decision with action masks",
    "runnel.envs.toy:DictGoal": "walk to a goal; Dict observation",
    "runnel.envs.toy:PointMass": "push a point to the origin; continuous, learned in seconds",
}


def list_envs() -> dict[str, str]:
    """Environments worth a first try, with one line each."""
    return dict(_KNOWN)


def is_tensor_env(target: Target) -> bool:
    """Whether `target` names an environment of tensors (`tensor:CartPole-v1`, `tensor:file.py:Class`)."""
    return isinstance(target, str) and target.startswith(_TENSOR)


def env_name(target: Target) -> str:
    """A short name for messages and reports."""
    return target if isinstance(target, str) else str(getattr(target, "__qualname__", target))


def make_env(target: Target, *, kwargs: Mapping[str, Any] | None = None) -> Any:
    """One Gymnasium environment. Wrappers that only check the caller are left out: vectors never break their rules."""
    options = dict(kwargs or {})
    if is_tensor_env(target):
        raise ConfigError("env", target, "a tensor environment has no Gymnasium form; use make_vector, or the plain id")
    if not isinstance(target, str):
        return _construct(target, target, options)
    if is_reference(target) and not _registered(target):
        return _construct(load_object(target, "env"), target, options)
    return _from_gymnasium(target, options)


def _construct(factory: Callable[..., Any], target: Target, options: dict[str, Any]) -> Any:
    import gymnasium as gym

    if not callable(factory):
        raise ConfigError("env", target, "it is not callable; give an environment class or a function that makes one")
    env = factory(**options)
    if not isinstance(env, gym.Env):
        raise ConfigError("env", target, f"it made a {type(env).__name__}; give a class or factory of gymnasium.Env")
    return env


def _registered(target: str) -> bool:
    import gymnasium as gym

    return target in gym.registry


def _from_gymnasium(target: str, options: dict[str, Any]) -> Any:
    import gymnasium as gym
    from gymnasium import error

    try:
        if target not in gym.registry:
            return gym.make(target, disable_env_checker=True, **options)
        plain = dataclasses.replace(gym.spec(target), order_enforce=False)
        return gym.make(plain, disable_env_checker=True, **options)
    except (error.Error, ModuleNotFoundError) as problem:
        raise ConfigError("env", target, _advice(target, str(problem))) from problem


def _advice(target: str, problem: str) -> str:
    """How to get an environment that Gymnasium could not make."""
    import gymnasium as gym

    if target.startswith("ALE/"):
        return 'Atari is not installed; pip install "runnel[atari]"'
    if target.split("-")[0] in _MUJOCO and (target in gym.registry or "-v" in target):
        return f'{problem.rstrip(".")}; pip install "runnel[mujoco]", and use the newest version (-v5)'
    if target.endswith(".py"):
        return "a file needs the name of what to make: path/to/file.py:factory"
    if "deprecated" in problem:
        return problem
    close = difflib.get_close_matches(target, {**gym.registry, **_KNOWN}, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "run `runnel list` for a start"
    return f"no such environment; {hint} Or give module:Class, path/to/file.py:factory, a class or a function"


def make_tensor_env(target: str, *, kwargs: Mapping[str, Any] | None = None) -> TensorEnv:
    """The `TensorEnv` behind `tensor:NAME` or `tensor:module:Class`."""
    name = target.removeprefix(_TENSOR)
    if name not in TENSOR_ENVS and not is_reference(name):
        raise ConfigError("env", target, f"known tensor environments: {', '.join(_TENSOR + k for k in TENSOR_ENVS)}")
    factory = TENSOR_ENVS[name] if name in TENSOR_ENVS else load_object(name, "env")
    env = factory(**dict(kwargs or {}))
    if not isinstance(env, TensorEnv):
        raise ConfigError("env", target, "it lacks a part of runnel.envs.device.TensorEnv (initial, transition, observe, spec)")
    return env


def make_vector(
    target: Target,
    num_envs: int,
    *,
    seed: int,
    index0: int = 0,
    device: str = "cpu",
    kwargs: Mapping[str, Any] | None = None,
) -> VectorEnv:
    """`num_envs` environments behind the vector contract; `device` places a tensor environment."""
    if num_envs < 1:
        raise ConfigError("num_envs", num_envs, "use at least one environment")
    if is_tensor_env(target):
        assert isinstance(target, str)
        return TensorVector(make_tensor_env(target, kwargs=kwargs), num_envs, seed=seed, index0=index0, device=device)
    return SerialVector(lambda: make_env(target, kwargs=kwargs), num_envs, seed=seed, index0=index0, name=env_name(target))


def probe_env(target: Target, *, kwargs: Mapping[str, Any] | None = None) -> EnvSpec:
    """What the environment looks like, from one reset; it is closed again."""
    if is_tensor_env(target):
        assert isinstance(target, str)
        return make_tensor_env(target, kwargs=kwargs).spec
    env = make_env(target, kwargs=kwargs)
    try:
        return look_at(env, env_name(target))
    finally:
        env.close()


def obs_flattener(target: Target, *, kwargs: Mapping[str, Any] | None = None) -> Callable[[Any], dict[str, Any]]:
    """`flatten_obs` for the observations of `target`."""
    if is_tensor_env(target):
        (key,) = probe_env(target, kwargs=kwargs).obs
        return lambda obs: {key: np.asarray(obs, dtype=np.float32)}
    env = make_env(target, kwargs=kwargs)
    try:
        return flatten_obs(env.observation_space)
    finally:
        env.close()
