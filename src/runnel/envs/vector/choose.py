"""The back end by measurement: a few steps of each that is possible, well under a second in all.

`serial` and `processes` play the same episodes, so between them only speed counts. A vector of Gymnasium's own is another
implementation of the environment, with random numbers of its own: it is taken only where it is clearly faster, so that noise
does not decide what a seed means. The number of environments is never chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runnel.core.actions import mask_parts
from runnel.core.errors import RunnelError
from runnel.core.spaces import ActionSpec, EnvSpec
from runnel.envs.vector.config import VectorConfig
from runnel.envs.vector.contract import VectorEnv

Array = NDArray[Any]
MEASURE_S = 0.1
WORTH = {"serial": 1.0, "processes": 1.2, "gymnasium": 1.5, "envpool": 1.0}
"""How many times faster than the simplest a back end must be to be chosen."""


@dataclass(frozen=True)
class Choice:
    """A resolved `VectorConfig` (never `auto`), and the line that says why."""

    config: VectorConfig
    text: str


@dataclass(frozen=True)
class Candidate:
    """A way to step: what it is called, its settings, and how long a step of all environments takes."""

    label: str
    config: VectorConfig
    measure: Callable[[], float]


def decide(name: str, num_envs: int, candidates: list[Candidate], note: str = "") -> Choice:
    """Measure all candidates, the simplest first, and take the fastest that is worth it."""
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
    """Seconds of one step of a vector, and how many steps were made to find out."""

    step_s: float
    num_steps: int


def time_step(vector: VectorEnv, *, budget_s: float = MEASURE_S) -> Timed:
    """Seconds of one step with random actions: the mean of the fastest nine tenths of what fits into `budget_s` (at least 3
    steps). Closes the vector."""
    try:
        rng = np.random.default_rng(0)
        vector.reset(0)
        vector.step(random_actions(vector, rng))
        times: list[float] = []
        end = time.perf_counter() + budget_s
        while len(times) < 3 or time.perf_counter() < end:
            actions = random_actions(vector, rng)
            start = time.perf_counter()
            vector.step(actions)
            times.append(time.perf_counter() - start)
        return Timed(float(np.mean(np.sort(times)[: max(3, len(times) * 9 // 10)])), len(times))
    finally:
        vector.close()


def random_actions(vector: VectorEnv, rng: np.random.Generator) -> Tensor:
    """Network actions `[B, ...]` that the masks of the moment allow."""
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
    """Numbers of processes worth a try: one a core and half of that; more where environments wait rather than compute."""
    counts = {min(num_envs, cores), min(num_envs, cores // 2)}
    if sleeps:
        counts.add(min(num_envs, 16 * cores))
    return sorted(n for n in counts if n > 1)


def thread_counts(num_envs: int, cores: int) -> list[int]:
    """Numbers of threads worth a try in a compiled back end."""
    return sorted({1, min(num_envs, cores), min(num_envs, max(1, cores // 2))})


def same_layout(a: EnvSpec, b: EnvSpec) -> bool:
    """Whether two implementations look the same to a network."""
    shapes = [{k: (x.shape, x.dtype) for k, x in spec.obs.items()} for spec in (a, b)]
    return shapes[0] == shapes[1] and a.action == b.action and a.has_mask == b.has_mask
