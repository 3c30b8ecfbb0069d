"""Summaries of a list of scores: mean with its interval, median, interquartile mean.

A mean over seeds always has the interval of Student's t (`mean_interval`). Seeds are few: a bootstrap of three values gives
their minimum and maximum, which contain the true mean in only three of four cases. Episodes are many, so their intervals are
percentiles of a bootstrap (Efron 1979). It is seeded, so a report gives the same numbers twice. `aggregates.py` is for scores
of several tasks and seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_rng

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""From `[..., n]` to `[...]`."""

TAIL = (1.0 - 0.95) / 2.0
"""The share that a 95 % interval leaves out on each side."""
FEW_SEEDS = 5
"""With fewer seeds, their interval is called a rough guess."""
FEWEST_SEEDS = 3
"""With fewer seeds, no interval is drawn. That of Student's t is 13 times as wide as the distance of two seeds; a bootstrap
gives their minimum and maximum, which contain the true mean in half of all cases."""


@dataclass(frozen=True)
class Summary:
    """Statistics of `num` values. `low` and `high` are the interval of the mean."""

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
    low, high = percentiles(resampled, confidence)
    return float(low), float(high)


def percentiles(draws: Array, confidence: float = 0.95) -> tuple[Array, Array]:
    """The two quantiles of `draws` [..., R] that leave out the same share on each side."""
    if not 0.0 < confidence < 1.0:
        raise ConfigError("confidence", confidence, "use a share between 0 and 1, such as 0.95")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(draws, [tail, 1.0 - tail], axis=-1)
    return np.asarray(low), np.asarray(high)


def mean_interval(values: Array, *, confidence: float = 0.95) -> tuple[Array, Array]:
    """Mean over the first axis (seeds), and half the width of its interval by Student's t (0 for a single seed).

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
    """The number of standard errors on both sides of the mean within which Student's t of `freedom` degrees has `confidence`.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 4, 30)]
    [12.706, 4.303, 2.776, 2.042]
    """
    low, high = 0.0, math.pi / 2
    while (middle := (low + high) / 2) not in (low, high):  # bisection, until there is no float between the two
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
    """A remark about an interval over `num` seeds; empty if there are enough seeds.

    >>> few_seeds(3), few_seeds(5)
    ('fewer than 5: a rough guess', '')
    """
    return f"fewer than {FEW_SEEDS}: a rough guess" if num < FEW_SEEDS else ""


def resamples(sizes: Sequence[int]) -> bool:
    """Whether a 95 % bootstrap interval over tasks with `sizes` seeds is narrower than their minimum to maximum. With two seeds
    on each of two tasks, one draw in 16 repeats the lowest seed of both: more than the 2.5 % that the interval leaves out.

    >>> resamples([2]), resamples([2, 2]), resamples([2, 2, 2]), resamples([3])
    (False, False, True, True)
    """
    lowest = math.prod(float(size) ** -size for size in sizes)
    return min(sizes) >= FEWEST_SEEDS or (min(sizes) > 1 and lowest <= TAIL)


def share_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean of shares in [0, 1], such as pass@k of each prompt: a bootstrap over prompts.

    If all are 0, or all are 1, every resample is the same. Then it is the exact binomial interval (Clopper and Pearson 1934):
    after n failures and no success, the share may still be `1 - 0.025 ** (1 / n)`.

    >>> [round(bound, 3) for bound in share_interval([0.0] * 20)]
    [0.0, 0.168]
    """
    x = _checked(values)
    rest = 1.0 - TAIL ** (1.0 / len(x))
    if (x == 0.0).all():
        return 0.0, rest
    if (x == 1.0).all():
        return 1.0 - rest, 1.0
    return bootstrap_interval(values)


def wilson_interval(wins: float, games: float, *, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a win rate (Wilson 1927): the rates from which `wins` of `games` do not differ too much. A draw may count as
    half a win; then the interval is rather too wide, as draws make a result steadier.

    >>> [round(bound, 3) for bound in wilson_interval(10, 10)]
    [0.722, 1.0]
    """
    if not 0 <= wins <= games or games <= 0:
        raise DataError(f"a win rate needs games, and no more wins than games; got {wins} of {games}")
    z = NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    rate, square = wins / games, z * z / games
    centre, half = rate + square / 2.0, z * math.sqrt((rate * (1.0 - rate) + square / 4.0) / games)
    return max(0.0, (centre - half) / (1.0 + square)), min(1.0, (centre + half) / (1.0 + square))


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
