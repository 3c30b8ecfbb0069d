"""Numbers that summarise a handful of scores honestly: a mean with its interval, median, interquartile mean.

Intervals are percentile-bootstrap intervals (Efron 1979), as Agarwal et al. (2021, "Deep RL at the edge of the statistical
precipice") recommend for few runs; the resampling is seeded, so a report gives the same numbers twice. Scores of several tasks
and seeds are in `aggregates.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import DataError
from runnel.core.rng import make_rng

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From `[..., n]` to `[...]`."""


@dataclass(frozen=True)
class Summary:
    """`low` and `high` bound the mean with the asked confidence; `num` is how many values there were."""

    mean: float
    low: float
    high: float
    median: float
    iqm: float
    num: int


def mean(x: Array) -> Array:
    """Arithmetic mean over the last axis."""
    return np.asarray(x.mean(axis=-1))


def median(x: Array) -> Array:
    """Median over the last axis."""
    return np.asarray(np.median(x, axis=-1))


def iqm(x: Array) -> Array:
    """Interquartile mean over the last axis: the mean of the middle half, without the lowest and the highest `n // 4` values.

    The same as a mean trimmed by a quarter on each side (Agarwal et al. 2021); of fewer than four values it is the mean.

    >>> float(iqm(np.array([1.0, 2.0, 3.0, 100.0])))
    2.5
    """
    n = x.shape[-1]
    cut = n // 4
    middle = np.partition(x, (cut, n - cut - 1), axis=-1) if cut else x
    return np.asarray(middle[..., cut : n - cut].mean(axis=-1))


def bootstrap_interval(
    values: Sequence[float], *, statistic: Statistic = mean, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile-bootstrap interval of `statistic`: its quantiles over resamples of `values` with replacement."""
    x = _checked(values)
    rng = make_rng(seed, "bootstrap")
    resampled = statistic(x[rng.integers(0, len(x), size=(num_resamples, len(x)))])
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(resampled, [tail, 1.0 - tail])
    return float(low), float(high)


def share_interval(
    values: Sequence[float], *, confidence: float = 0.95, num_resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Interval of the mean of shares in [0, 1], such as pass@k of each prompt: the bootstrap's, over prompts.

    Where all are 0, or all are 1, resampling cannot see what did not happen to occur; the exact binomial bound can (Clopper and
    Pearson 1934): after n failures and no success the share may still be `1 - tail ** (1 / n)`.

    >>> [round(bound, 3) for bound in share_interval([0.0] * 20)]
    [0.0, 0.168]
    """
    x = _checked(values)
    rest = 1.0 - ((1.0 - confidence) / 2.0) ** (1.0 / len(x))
    if (x == 0.0).all():
        return 0.0, rest
    if (x == 1.0).all():
        return 1.0 - rest, 1.0
    return bootstrap_interval(values, confidence=confidence, num_resamples=num_resamples, seed=seed)


def summarise(values: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Summary:
    """Mean with its bootstrap interval, median and interquartile mean.

    >>> summarise([2.0, 2.0, 2.0])
    Summary(mean=2.0, low=2.0, high=2.0, median=2.0, iqm=2.0, num=3)
    """
    x = _checked(values)
    low, high = bootstrap_interval(values, confidence=confidence, seed=seed)
    return Summary(float(mean(x)), low, high, float(np.median(x)), float(iqm(x)), len(x))


def _checked(values: Any) -> Array:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0:
        raise DataError(f"a summary needs at least one value in a flat list; got shape {x.shape}")
    if not np.isfinite(x).all():
        raise DataError(f"a summary needs finite values; number {int(np.flatnonzero(~np.isfinite(x))[0])} is not")
    return x
