"""Curves over many tasks and seeds, with bands: performance profiles and sample-efficiency curves.

Their bands come from a stratified bootstrap (`aggregates.py`). One resample of the seeds is used for the whole curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runnel.core.errors import DataError
from runnel.core.rng import make_rng
from runnel.eval.aggregates import CHUNK, Scores, Strata
from runnel.eval.statistics import Array, iqm, percentiles

NUM_RESAMPLES = 2_000


@dataclass(frozen=True)
class Band:
    """A curve `value` over `x` with its pointwise interval, all `[T]`."""

    x: Array
    value: Array
    low: Array
    high: Array


def performance_profile(
    scores: Scores,
    thresholds: Sequence[float] | Array,
    *,
    confidence: float = 0.95,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> Band:
    """For each threshold [T] the share of runs that score above it; all tasks have equal weight (Agarwal et al. 2021).

    If one profile is above another everywhere, then more of its runs reach any given score.
    """
    strata, at = Strata(scores), np.asarray(thresholds, dtype=np.float64)
    rng = make_rng(seed, "profile")
    share, draws = np.zeros(len(at)), np.zeros((num_resamples, len(at)))
    for start, size in zip(strata.starts.tolist(), strata.sizes.tolist(), strict=True):
        above = (strata.values[start : start + size, None] > at).astype(np.float64)
        times = rng.multinomial(size, np.full(size, 1.0 / size), size=num_resamples)
        share += above.mean(axis=0)
        draws += times @ above / size
    low, high = percentiles(draws.T / len(strata.sizes), confidence)
    return Band(at, share / len(strata.sizes), low, high)


def efficiency_curve(curves: Sequence[Array], positions: Sequence[float] | Array) -> Band:
    """Interquartile mean over tasks and seeds at each position [T]; `curves` has for each task the scores `[seeds, T]`."""
    at = np.asarray(positions, dtype=np.float64)
    rows = [np.asarray(task, dtype=np.float64) for task in curves]
    if not rows or any(row.ndim != 2 or row.shape[1] != len(at) for row in rows):
        raise DataError(f"curves are [tasks][seeds, {len(at)}]; got shapes {[row.shape for row in rows]}")
    values = np.concatenate(rows)
    strata = Strata([row[:, 0] for row in rows])
    if not np.isfinite(values).all():
        raise DataError("curves must be finite at every position; cut them to where all runs have scores")
    index = np.concatenate(list(strata.draws(NUM_RESAMPLES, seed=0)))
    step = max(1, CHUNK // index.size)
    draws = np.concatenate([iqm(values.T[i : i + step][:, index]) for i in range(0, len(at), step)])
    low, high = percentiles(draws)
    return Band(at, iqm(values.T), low, high)
