"""One number for many tasks and seeds, with its interval: interquartile mean, median, mean, optimality gap.

Scores are `[tasks][seeds]`; tasks may have different numbers of seeds. Intervals are percentiles of a stratified bootstrap
(Agarwal et al. 2021, "Deep RL at the edge of the statistical precipice"): each task resamples its own seeds, with replacement.
So the interval covers what would differ if the experiment were run again on the same tasks. All resampling is seeded.
The mean over the seeds of one task has Student's interval, as everywhere (`statistics.mean_interval`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_rng
from runnel.eval.statistics import Array, iqm, mean_interval, percentiles

Scores = Sequence[Sequence[float] | Array] | Array
"""`[tasks][seeds]`."""
NUM_RESAMPLES = 10_000
CHUNK = 1 << 20
"""Numbers that are resampled at a time. It limits the memory."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


class Strata:
    """The population of a stratified bootstrap: the scores of all tasks in one row `values` [N], and where each task begins."""

    def __init__(self, scores: Scores) -> None:
        rows = [np.asarray(task, dtype=np.float64) for task in scores]
        if not rows or any(row.ndim != 1 or not len(row) for row in rows):
            raise DataError(f"scores are [tasks][seeds], at least one of each; got shapes {[row.shape for row in rows]}")
        if not all(np.isfinite(row).all() for row in rows):
            bad = next(i for i, row in enumerate(rows) if not np.isfinite(row).all())
            raise DataError(f"scores must be finite; one of task number {bad} is not")
        self.values: Array = np.concatenate(rows)
        self.sizes: NDArray[np.int64] = np.array([len(row) for row in rows])
        self.starts: NDArray[np.int64] = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])

    def task_means(self, x: Array) -> Array:
        """From `[..., N]` to `[..., tasks]`."""
        return np.asarray(np.add.reduceat(x, self.starts, axis=-1) / self.sizes)

    def draws(self, num: int, seed: int) -> Iterator[NDArray[np.int64]]:
        """Indices `[chunk, N]` of `num` resamples in all. Each task draws from its own seeds, as many as it has."""
        rng, rows = make_rng(seed, "strata"), max(1, CHUNK // len(self.values))
        high = np.repeat(self.sizes, self.sizes)
        first = np.repeat(self.starts, self.sizes)
        for done in range(0, num, rows):
            yield first + rng.integers(0, high, size=(min(rows, num - done), len(high)))


Aggregate = Callable[[Array, Strata], Array]
"""From resampled scores `[..., N]` to `[...]`."""


def pooled_iqm(x: Array, strata: Strata) -> Array:
    """Interquartile mean of the scores of all tasks and seeds together; a task with more seeds weighs more."""
    return iqm(x)


def task_median(x: Array, strata: Strata) -> Array:
    """Median over tasks of the mean over seeds."""
    return np.asarray(np.median(strata.task_means(x), axis=-1))


def task_mean(x: Array, strata: Strata) -> Array:
    """Mean over tasks of the mean over seeds."""
    return np.asarray(strata.task_means(x).mean(axis=-1))


def run_median(x: Array, strata: Strata) -> Array:
    """Median over all runs. It is for a single task, where the median over tasks would be the mean."""
    return np.asarray(np.median(x, axis=-1))


def optimality_gap(x: Array, strata: Strata) -> Array:
    """The mean amount by which scores are below 1. A score above 1 counts as 1. Less is better."""
    return np.asarray(1.0 - strata.task_means(np.minimum(x, 1.0)).mean(axis=-1))


AGGREGATES: dict[str, Aggregate] = {
    "iqm": pooled_iqm,
    "median": task_median,
    "run_median": run_median,
    "mean": task_mean,
    "optimality_gap": optimality_gap,
}


def resampled(
    scores: Scores, statistics: Sequence[str], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> tuple[Array, Array]:
    """The statistics [S] of the scores, and of `num_resamples` stratified resamples of them [S, R] (the same for each)."""
    for name in statistics:
        if name not in AGGREGATES:
            raise ConfigError("statistic", name, f"unknown; use one of {', '.join(AGGREGATES)}")
    if num_resamples < 1:
        raise ConfigError("num_resamples", num_resamples, "use at least 1; 10,000 give a steady interval")
    strata = Strata(scores)
    functions = [AGGREGATES[name] for name in statistics]
    found = [
        np.stack([function(strata.values[index], strata) for function in functions])
        for index in strata.draws(num_resamples, seed)
    ]
    return np.array([float(function(strata.values, strata)) for function in functions]), np.concatenate(found, axis=-1)


def aggregate(
    scores: Scores,
    statistics: Sequence[str] = ("iqm", "median", "mean", "optimality_gap"),
    *,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> dict[str, Interval]:
    """Each of `statistics` with its interval.

    >>> aggregate([[0.0, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]], ["iqm", "optimality_gap"])["iqm"].value
    1.0
    """
    values, draws = resampled(scores, statistics, num_resamples=num_resamples, seed=seed)
    low, high = percentiles(draws, confidence)
    found = {name: Interval(float(values[i]), float(low[i]), float(high[i])) for i, name in enumerate(statistics)}
    return found | {name: over_seeds(scores[0], confidence=confidence) for name in plain_means(scores) if name in found}


def over_seeds(values: Sequence[float] | Array, *, confidence: float = 0.95) -> Interval:
    """The mean of one task's seeds, with Student's interval.

    >>> found = over_seeds([1.0, 3.0])
    >>> found.value, round(found.low, 3), round(found.high, 3)
    (2.0, -10.706, 14.706)
    """
    mean, half = mean_interval(np.asarray(values, dtype=np.float64), confidence=confidence)
    return Interval(float(mean), float(mean - half), float(mean + half))


def plain_means(scores: Scores) -> tuple[str, ...]:
    """The statistics that equal the mean over seeds if there is one task: its median over tasks, and its IQM of fewer than four
    seeds."""
    if len(scores) != 1 or len(scores[0]) < 2:
        return ()
    return ("mean", "median") if len(scores[0]) >= 4 else ("mean", "median", "iqm")
