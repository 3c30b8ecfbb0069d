"""Numbers that summarise a handful of scores honestly: a mean with its interval, median, interquartile mean.

A mean over seeds has one interval, that of Student's t (`mean_interval`), wherever it is shown: there are few seeds, and of
three values a bootstrap gives the lowest and the highest, which hold the truth three times in four. Episodes are many: their
intervals are percentiles of a bootstrap (Efron 1979), seeded, so a report gives the same numbers twice. Scores of several tasks
and seeds are in `aggregates.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runnel.core.errors import DataError
from runnel.core.rng import make_rng

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From `[..., n]` to `[...]`."""

FEW_SEEDS = 5
"""Below this many seeds an interval over them is said to be a rough guess."""
FEWEST_SEEDS = 3
"""Below this many seeds no interval is drawn: Student's t is 13 times as wide as they lie apart, and a bootstrap gives their
minimum and maximum, which hold the truth every second time."""


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


def mean_interval(values: Array, *, confidence: float = 0.95) -> tuple[Array, Array]:
    """Mean over the first axis (seeds), and half the width of its interval by Student's t: 0 for one, who has none.

    >>> mean, half = mean_interval(np.array([[1.0], [3.0]]))
    >>> float(mean[0]), round(float(half[0]), 3)
    (2.0, 12.706)
    """
    num, centre = values.shape[0], np.asarray(values.mean(axis=0))
    if num < 2:
        return centre, np.zeros_like(centre)
    return centre, np.asarray(t_quantile(num - 1, confidence) * values.std(axis=0, ddof=1) / math.sqrt(num))


@lru_cache
def t_quantile(freedom: int, confidence: float = 0.95) -> float:
    """How many standard errors on both sides of a mean hold `confidence` of Student's t with `freedom` degrees.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 4, 30)]
    [12.706, 4.303, 2.776, 2.042]
    """
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if _t_share(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _t_share(angle: float, freedom: int) -> float:
    """The share of Student's t within `sqrt(freedom) * tan(angle)` (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    odd, square = freedom % 2, math.cos(angle) ** 2
    term = total = math.cos(angle) if odd else 1.0
    for i in range(2 + odd, freedom, 2):
        term *= square * (i - 1) / i
        total += term
    if not odd:
        return math.sin(angle) * total
    return 2.0 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))


def few_seeds(num: int) -> str:
    """What to say beside an interval over `num` seeds; empty where they are enough.

    >>> few_seeds(3), few_seeds(5)
    ('fewer than 5: a rough guess', '')
    """
    return f"fewer than {FEW_SEEDS}: a rough guess" if num < FEW_SEEDS else ""


def resamples(sizes: Sequence[int], *, confidence: float = 0.95) -> bool:
    """Whether a bootstrap over tasks with so many seeds each is more than the lowest and the highest of them. With two seeds of
    one or two tasks every 16th draw has the lowest alone, and so has the bound of a 95 % interval.

    >>> resamples([2]), resamples([2, 2]), resamples([2, 2, 2]), resamples([3])
    (False, False, True, True)
    """
    lowest = math.prod(float(size) ** -size for size in sizes)
    return min(sizes) >= FEWEST_SEEDS or (min(sizes) > 1 and lowest <= (1.0 - confidence) / 2.0)


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


def _checked(values: ArrayLike) -> Array:
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0:
        raise DataError(f"a summary needs at least one value in a flat list; got shape {x.shape}")
    if not np.isfinite(x).all():
        raise DataError(f"a summary needs finite values; number {int(np.flatnonzero(~np.isfinite(x))[0])} is not")
    return x
