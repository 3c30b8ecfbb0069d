"""Measures a step on each back end and recommends a setting, for `runnel bench --backends`.

A run never measures, because the result would differ from day to day (`choose.py`). `serial` and `processes` play the same
episodes. Gymnasium's own vector is another implementation of the environment, with other random numbers.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.action_codec import mask_parts
from runnel.core.errors import RunnelError
from runnel.core.spaces import ActionSpec
from runnel.core.state import Array
from runnel.envs.vector.build import build_vector
from runnel.envs.vector.choose import Choice
from runnel.envs.vector.config import VectorConfig
from runnel.envs.vector.contract import VectorEnv
from runnel.envs.vector.processes import ProcessVector
from runnel.envs.vector.serial import SerialVector
from runnel.envs.vector.source import EnvSource

MEASURE_S = 0.1
WORTH = {"serial": 1.0, "processes": 1.2, "gymnasium": 1.5, "envpool": 1.0}
"""A back end is recommended if it is this many times as fast as the simplest one."""
OWN_RANDOMNESS = "Gymnasium's own vector version: the same task, other code and other random numbers than serial"
_CHEAP_S = 0.005
"""An environment that is made faster than this is measured with 16 copies, else with two, which overstates shared costs."""
_HOPELESS_S = 300e-6
"""If a step of all environments takes less, processes are not tried: waking one costs a third of it."""


@dataclass(frozen=True)
class Candidate:
    """A back end to try: its name, its settings, and a function that measures a step of all environments in seconds."""

    label: str
    config: VectorConfig
    measure: Callable[[], float]


def measure_backends(source: EnvSource, num_envs: int, config: VectorConfig, *, cores: int) -> Choice:
    """Find the fastest back end for `num_envs` of `source` on this machine. Takes about a second."""
    if source.kind != "plain":
        return decide(source.name, num_envs, _thread_candidates(source, num_envs, config, cores))
    if source.needs_vec:
        return Choice(config.resolve("gymnasium"), f"{source.name} x {num_envs}: has nothing but its own vector")
    serial_s, sleeps = _time_serial(source, num_envs)
    candidates = [] if config.step_timeout_s else [Candidate("serial", config.resolve("serial"), lambda: serial_s)]
    if source.make_vec is not None and _may_use_vec(config):
        candidates.append(_timed("gymnasium vector entry point", source, num_envs, config.resolve("gymnasium")))
    if config.step_timeout_s or config.num_workers or (serial_s > _HOPELESS_S and num_envs > 1):
        given = [min(config.num_workers, num_envs)] if config.num_workers else []
        counts = given or worker_counts(num_envs, cores, sleeps=sleeps) or [1]
        candidates += [
            _process_candidate(source, num_envs, config.resolve("processes", num_workers=n), serial_s) for n in counts
        ]
    return decide(source.name, num_envs, candidates, OWN_RANDOMNESS)


def decide(name: str, num_envs: int, candidates: list[Candidate], note: str = "") -> Choice:
    """Measure all candidates, the simplest first, and choose the fastest, weighted by `WORTH`."""
    times: list[tuple[float, Candidate]] = []
    problems: list[str] = []
    for candidate in candidates:
        try:
            times.append((candidate.measure(), candidate))
        except RunnelError as error:
            problems.append(f"{candidate.label} does not work: {error}")
    if not times:
        raise RunnelError(f"{name}: no back end works; {'; '.join(problems)}")
    best = min(times, key=lambda pair: pair[0] * WORTH[pair[1].config.backend])
    others = [f"{c.label} {_us(t)}" for t, c in times if c is not best[1]] + problems
    beside = f" ({', '.join(others)})" if others else ""
    remark = f"; {note}" if note and best[1].config.backend == "gymnasium" else ""
    return Choice(best[1].config, f"{name} x {num_envs}: {best[1].label}, {_us(best[0])} a step{beside}{remark}")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"


@dataclass(frozen=True)
class Timed:
    """Seconds of one step of a vector, and the number of steps that were measured."""

    step_s: float
    num_steps: int


def time_step(vector: VectorEnv, *, budget_s: float | None = None) -> Timed:
    """Seconds of one step with random actions: the mean of the fastest nine tenths of the steps within `budget_s`.

    `budget_s` None: `MEASURE_S`. At least 3 steps. Closes the vector.
    """
    try:
        rng = np.random.default_rng(0)
        vector.reset(0)
        vector.step(random_actions(vector, rng))
        times: list[float] = []
        end = time.perf_counter() + (MEASURE_S if budget_s is None else budget_s)
        while len(times) < 3 or time.perf_counter() < end:
            actions = random_actions(vector, rng)
            start = time.perf_counter()
            vector.step(actions)
            times.append(time.perf_counter() - start)
        return Timed(float(np.mean(np.sort(times)[: max(3, len(times) * 9 // 10)])), len(times))
    finally:
        vector.close()


def random_actions(vector: VectorEnv, rng: np.random.Generator) -> Tensor:
    """Random network actions `[B, ...]` that the present masks allow."""
    spec, b, mask = vector.spec, vector.num_envs, vector.out.action_mask
    flags = None if mask is None else mask.numpy()
    if spec.action.kind != "multi":
        return torch.from_numpy(_draw(spec.action, b, flags, rng))
    columns, masks = [], iter(() if flags is None else mask_parts(flags, spec.action))
    for part in spec.action.parts:
        allowed = next(masks, None) if part.kind == "discrete" else None
        columns.append(_draw(part, b, allowed, rng).reshape(b, -1))
    return torch.from_numpy(np.concatenate(columns, axis=1)).to(spec.action.dtype)


def _draw(action: ActionSpec, b: int, mask: Array | None, rng: np.random.Generator) -> Array:
    if action.kind == "continuous":
        return rng.uniform(-1.0, 1.0, (b, *action.shape)).astype(np.float32)
    if mask is None:
        return rng.integers(0, action.num_actions, b)
    drawn: Array = (rng.random(mask.shape) * mask).argmax(1)
    return drawn


def worker_counts(num_envs: int, cores: int, *, sleeps: bool) -> list[int]:
    """Numbers of processes to try: one for each core, half of that, and more where environments sleep."""
    counts = {min(num_envs, cores), min(num_envs, cores // 2)}
    if sleeps:
        counts.add(min(num_envs, 16 * cores))
    return sorted(n for n in counts if n > 1)


def thread_counts(num_envs: int, cores: int) -> list[int]:
    """Numbers of threads to try in a compiled back end."""
    return sorted({1, min(num_envs, cores), min(num_envs, max(1, cores // 2))})


def _may_use_vec(config: VectorConfig) -> bool:
    return config.on_error == "stop" and not (config.step_timeout_s or config.frame_stack or config.num_workers)


def _time_serial(source: EnvSource, num_envs: int) -> tuple[float, bool]:
    """Seconds of a step of all environments, and whether they sleep (voluntary context switches) rather than compute."""
    start = time.perf_counter()
    source.make().close()
    few = min(num_envs, 16 if time.perf_counter() - start < _CHEAP_S else 2)
    vector = SerialVector(source.make, few, seed=0, name=source.name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    timed = time_step(vector)
    sleeps = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before > timed.num_steps * few // 2
    return timed.step_s * num_envs / few, sleeps


def _timed(label: str, source: EnvSource, num_envs: int, config: VectorConfig) -> Candidate:
    return Candidate(label, config, lambda: time_step(build_vector(source, num_envs, config, seed=0)).step_s)


def _process_candidate(source: EnvSource, num_envs: int, config: VectorConfig, serial_s: float) -> Candidate:
    """Measure processes with one environment each. A worker's further environments add what they take in series."""
    workers = config.num_workers

    def measure() -> float:
        vector = ProcessVector(source.make, workers, spec=source.spec, seed=0, name=source.name, num_workers=workers)
        return time_step(vector).step_s + (-(-num_envs // workers) - 1) * serial_s / num_envs

    return Candidate(f"{workers} processes", config, measure)


def _thread_candidates(source: EnvSource, num_envs: int, config: VectorConfig, cores: int) -> list[Candidate]:
    """Candidates of compiled back ends. Atari has one, because its resets take long."""
    if source.kind == "atari":
        chosen = config.resolve("gymnasium", threads=config.threads or min(num_envs, cores))
        return [_timed(f"ale-py's own vector with {chosen.threads} threads", source, num_envs, chosen)]
    counts = [config.threads] if config.threads else thread_counts(num_envs, cores)
    return [
        _timed(f"EnvPool with {n} thread{'s' if n > 1 else ''}", source, num_envs, config.resolve("envpool", threads=n))
        for n in counts
    ]
