"""From a `VectorConfig` to a vector: which back ends an environment has, how each is made, and how long each takes."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from runnel.core.errors import ConfigError
from runnel.core.spaces import EnvSpec
from runnel.envs.spaces import env_spec
from runnel.envs.vector.choose import Candidate, Choice, decide, same_layout, thread_counts, time_step, worker_counts
from runnel.envs.vector.config import VectorConfig
from runnel.envs.vector.contract import VectorEnv
from runnel.envs.vector.gym_vector import GymVector, MakeVec, choose_resets
from runnel.envs.vector.processes import ProcessVector, num_cores
from runnel.envs.vector.serial import SerialVector

_CHEAP_S = 0.005
"""An environment made faster than this is tried in numbers; of others, two must do, and what steps share counts too often."""
_HOPELESS_S = 300e-6
"""A step of all environments below this is not worth a process: waking one costs a third of it."""
OWN_RANDOMNESS = "Gymnasium's own vector version: the same task, other code and other random numbers than serial"
_CHOICES: dict[str, Choice] = {}


@dataclass(frozen=True)
class Source:
    """An environment as vectors need it."""

    name: str
    kind: Literal["plain", "atari", "envpool"]
    make: Callable[[], Any]
    """One environment, frames stacked where that was asked for."""
    look: Callable[[], EnvSpec]
    """What it looks like; makes one to find out."""
    make_vec: MakeVec | None = None
    """Gymnasium's own vector of it, where there is one."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    needs_vec: bool = False
    """Whether there is nothing but `make_vec` (a user's vector class)."""

    @cached_property
    def spec(self) -> EnvSpec:
        """What it looks like, looked at once, and only where the vector does not find out itself."""
        return self.look()


def build_vector(source: Source, num_envs: int, config: VectorConfig, *, seed: int, index0: int = 0) -> VectorEnv:
    """The vector that `config` describes; `auto` is chosen first."""
    config.check()
    config = config if config.backend != "auto" else choose_backend(source, num_envs, config).config
    place: dict[str, Any] = {"seed": seed, "index0": index0}
    if source.kind == "atari":
        from runnel.envs.atari import ArcadeVector

        _only(source, config, "gymnasium")
        return ArcadeVector(source.name, num_envs, threads=config.threads, kwargs=source.kwargs, **place)
    if source.kind == "envpool":
        from runnel.envs.vector.envpool import PoolVector

        _only(source, config, "envpool")
        return PoolVector(source.name, num_envs, threads=config.threads or num_cores(), kwargs=source.kwargs, **place)
    if config.backend == "envpool":
        raise ConfigError("vector.backend", "envpool", f"name EnvPool's own environment: envpool:{source.name}")
    if config.backend == "gymnasium" or source.needs_vec:
        return _gymnasium(source, num_envs, config, **place)
    restart = config.on_error == "restart"
    if config.backend == "processes":
        limits: dict[str, Any] = {"num_workers": config.num_workers, "step_timeout_s": config.step_timeout_s}
        return ProcessVector(source.make, num_envs, spec=source.spec, name=source.name, restart=restart, **limits, **place)
    return SerialVector(source.make, num_envs, name=source.name, restart=restart, **place)


def _only(source: Source, config: VectorConfig, backend: str) -> None:
    if config.backend != backend:
        raise ConfigError("vector.backend", config.backend, f"{source.name} steps itself, on threads; use {backend} or auto")


def _gymnasium(source: Source, num_envs: int, config: VectorConfig, *, seed: int, index0: int) -> VectorEnv:
    if source.make_vec is None:
        raise ConfigError("vector.backend", "gymnasium", f"{source.name} has no vector of its own; use serial or processes")
    if config.frame_stack:
        raise ConfigError("vector.frame_stack", config.frame_stack, "serial and processes stack frames; use one of them")
    _check_layout(source, source.make_vec(1))
    resets = choose_resets(source.make_vec, num_envs, name=source.name, index0=index0)
    return GymVector(resets, seed=seed, index0=index0, name=source.name, has_mask=source.spec.has_mask)


def _check_layout(source: Source, vec: Any) -> None:
    """A network made for one environment must fit the vector of it."""
    found = env_spec(vec.single_observation_space, vec.single_action_space, has_mask=source.spec.has_mask)
    vec.close()
    if not same_layout(found, source.spec):
        raise ConfigError(
            "vector.backend",
            "gymnasium",
            f"the vector of {source.name} has other spaces than one environment ({found} is not {source.spec}); use serial"
            + (", or atari:NAME" if source.name.startswith("ALE/") else ""),
        )


# ----------------------------------------------------------------------------------------------------------- the choice
def choose_backend(source: Source, num_envs: int, config: VectorConfig) -> Choice:
    """`config` without `auto`, by measurement; asked again in this process, the answer is the same."""
    kwargs = json.dumps({k: str(v) for k, v in source.kwargs.items()}, sort_keys=True)
    key = f"{source.name} {kwargs} {num_envs} {config}"
    if key not in _CHOICES:
        _CHOICES[key] = _choose(source, num_envs, config)
    return _CHOICES[key]


def _choose(source: Source, num_envs: int, config: VectorConfig) -> Choice:
    if config.backend != "auto":
        return Choice(config, f"{source.name} x {num_envs}: {config.backend}, as configured")
    if source.kind != "plain":
        return _choose_threads(source, num_envs, config)
    if source.needs_vec:
        return Choice(config.resolve("gymnasium"), f"{source.name} x {num_envs}: the environment's own vector")
    serial_s, sleeps = _time_serial(source, num_envs)
    candidates = [Candidate("serial", config.resolve("serial"), lambda: serial_s)]
    if config.step_timeout_s:
        candidates = []
    if source.make_vec is not None and _may_use_vec(config):
        candidates.append(_vec_candidate(source, num_envs, config))
    if config.step_timeout_s or config.num_workers or (serial_s > _HOPELESS_S and num_envs > 1):
        candidates += _process_candidates(source, num_envs, config, serial_s=serial_s, sleeps=sleeps)
    return decide(source.name, num_envs, candidates, OWN_RANDOMNESS)


def _may_use_vec(config: VectorConfig) -> bool:
    return config.on_error == "stop" and not (config.step_timeout_s or config.frame_stack or config.num_workers)


def _time_serial(source: Source, num_envs: int) -> tuple[float, bool]:
    """Seconds of a step of all environments, and whether they wait for something rather than compute."""
    start = time.perf_counter()
    source.make().close()
    few = min(num_envs, 16 if time.perf_counter() - start < _CHEAP_S else 2)
    vector = SerialVector(source.make, few, seed=0, name=source.name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    timed = time_step(vector)
    sleeps = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before > timed.num_steps * few // 2
    return timed.step_s * num_envs / few, sleeps


def _vec_candidate(source: Source, num_envs: int, config: VectorConfig) -> Candidate:
    chosen = config.resolve("gymnasium")
    return Candidate(
        "gymnasium vector entry point", chosen, lambda: time_step(_gymnasium(source, num_envs, chosen, seed=0, index0=0)).step_s
    )


def _process_candidates(
    source: Source, num_envs: int, config: VectorConfig, *, serial_s: float, sleeps: bool
) -> list[Candidate]:
    """Processes with one environment each are measured; what the others of a worker add is what they take in series."""
    counts = [min(config.num_workers, num_envs)] if config.num_workers else worker_counts(num_envs, num_cores(), sleeps=sleeps)

    def measure(workers: int) -> float:
        vector = ProcessVector(source.make, workers, spec=source.spec, seed=0, name=source.name, num_workers=workers)
        return time_step(vector).step_s + (-(-num_envs // workers) - 1) * serial_s / num_envs

    return [
        Candidate(f"{n} processes", config.resolve("processes", num_workers=n), lambda n=n: measure(n))  # type: ignore[misc]
        for n in counts or [1]
    ]


def _choose_threads(source: Source, num_envs: int, config: VectorConfig) -> Choice:
    if source.kind == "atari":
        threads = config.threads or min(num_envs, num_cores())
        text = (
            f"{source.name} x {num_envs}: ale-py's own vector with {threads} threads (not measured: its resets take too long)"
        )
        return Choice(config.resolve("gymnasium", threads=threads), text)
    counts = [config.threads] if config.threads else thread_counts(num_envs, num_cores())
    candidates = [
        Candidate(
            f"EnvPool with {n} thread{'s' if n > 1 else ''}",
            chosen := config.resolve("envpool", threads=n),
            lambda chosen=chosen: time_step(build_vector(source, num_envs, chosen, seed=0)).step_s,  # type: ignore[misc]
        )
        for n in counts
    ]
    return decide(source.name, num_envs, candidates)
