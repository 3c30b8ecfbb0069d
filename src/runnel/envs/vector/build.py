"""Makes the vector that a `VectorConfig` describes, and refuses a back end that the environment does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runnel.core.errors import ConfigError
from runnel.core.spaces import EnvSpec
from runnel.envs.spaces import env_spec
from runnel.envs.vector.choose import choose
from runnel.envs.vector.config import VectorConfig
from runnel.envs.vector.contract import VectorEnv
from runnel.envs.vector.gym_vector import GymVector, choose_resets
from runnel.envs.vector.host import num_cores
from runnel.envs.vector.processes import ProcessVector
from runnel.envs.vector.serial import SerialVector
from runnel.envs.vector.source import EnvSource

if TYPE_CHECKING:
    import gymnasium as gym


def build_vector(
    source: EnvSource, num_envs: int, config: VectorConfig, *, seed: int, index0: int = 0, tasks: bool = False
) -> VectorEnv:
    """The vector that `config` describes, after `auto` has been resolved. With `tasks` its episodes play what they are told."""
    config.check()
    config = choose(source, num_envs, config, cores=num_cores(), plain=tasks).config
    if tasks and config.backend not in ("serial", "processes"):
        fix = "only environments that are reset one by one can be told what to play; use serial or processes"
        raise ConfigError("vector.backend", config.backend, fix)
    if source.kind == "atari":
        from runnel.envs.atari import arcade_vector

        _only(source, config, "gymnasium")
        threads, own = config.threads, source.channels
        return arcade_vector(
            source.name, num_envs, seed=seed, index0=index0, threads=threads, kwargs=source.kwargs, channels=own
        )
    if source.kind == "envpool":
        from runnel.envs.vector.envpool import PoolVector

        _only(source, config, "envpool")
        threads = config.threads or num_cores()
        return PoolVector(
            source.name,
            num_envs,
            seed=seed,
            index0=index0,
            threads=threads,
            kwargs=source.kwargs,
            channels=source.channels,
        )
    if config.backend == "envpool":
        raise ConfigError("vector.backend", "envpool", f"name EnvPool's own environment: envpool:{source.name}")
    if source.needs_vec:
        _only(source, config, "gymnasium")
    if config.backend == "gymnasium":
        return _gymnasium(source, num_envs, config, seed=seed, index0=index0)
    restart = config.on_error == "restart"
    if config.backend == "processes":
        return ProcessVector(
            source.make,
            num_envs,
            spec=source.spec,
            seed=seed,
            index0=index0,
            name=source.name,
            num_workers=config.num_workers,
            restart=restart,
            step_timeout_s=config.step_timeout_s,
            check=source.check,
            tasks=tasks,
        )
    return SerialVector(
        source.make,
        num_envs,
        seed=seed,
        index0=index0,
        name=source.name,
        restart=restart,
        check=source.check,
        channels=source.channels,
        tasks=tasks,
    )


def _only(source: EnvSource, config: VectorConfig, backend: str) -> None:
    if config.backend != backend:
        raise ConfigError(
            "vector.backend", config.backend, f"{source.name} steps itself, all copies at once; use {backend} or auto"
        )


def _gymnasium(source: EnvSource, num_envs: int, config: VectorConfig, *, seed: int, index0: int) -> VectorEnv:
    if source.make_vec is None:
        raise ConfigError("vector.backend", "gymnasium", f"{source.name} has no vector of its own; use serial or processes")
    if config.threads:
        raise ConfigError("vector.threads", config.threads, f"the vector of {source.name} has no threads to set; use 0")
    if config.frame_stack:
        raise ConfigError("vector.frame_stack", config.frame_stack, "serial and processes stack frames; use one of them")
    _check_layout(source, source.make_vec(1))
    resets = choose_resets(source.make_vec, num_envs, name=source.name, index0=index0)
    return GymVector(
        resets,
        seed=seed,
        index0=index0,
        name=source.name,
        has_mask=source.spec.has_mask,
        check=source.check,
        channels=source.channels,
    )


def _check_layout(source: EnvSource, vec: gym.vector.VectorEnv) -> None:
    """Refuse a vector with other spaces than one environment: a network for one must fit the other."""
    found = env_spec(vec.single_observation_space, vec.single_action_space, has_mask=source.spec.has_mask)
    vec.close()
    if not same_layout(found, source.spec):
        raise ConfigError(
            "vector.backend",
            "gymnasium",
            f"the vector of {source.name} has other spaces than one environment ({found} is not {source.spec}); use serial"
            + (", or atari:NAME" if source.name.startswith("ALE/") else ""),
        )


def same_layout(a: EnvSpec, b: EnvSpec) -> bool:
    """Whether two environments have the same leaves, actions and masks."""
    shapes = [{k: (x.shape, x.dtype) for k, x in spec.obs.items()} for spec in (a, b)]
    return shapes[0] == shapes[1] and a.action == b.action and a.has_mask == b.has_mask
