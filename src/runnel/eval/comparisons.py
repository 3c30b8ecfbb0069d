"""Compares two groups of runs on the same tasks: which is better, by how much, how certain, and how many seeds would decide it.

Scores of both groups are `[tasks][seeds]`, with the tasks in the same order. The size of the difference is that of the
interquartile means, with a bootstrap interval. Its certainty is the probability of improvement with its interval, and the
p-value of a rank test that permutes runs within each task (Wilcoxon 1945; several tasks as van Elteren 1960). The test decides:
its p-value is exact for any number of seeds, while a bootstrap interval of three seeds is too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist

import numpy as np

from runnel.core.errors import DataError
from runnel.core.rng import make_rng
from runnel.eval.aggregates import NUM_RESAMPLES, Interval, Scores, Strata, resampled
from runnel.eval.statistics import Array, percentiles, resamples

EXACT_RUNS = 60
"""With at most this many runs of a task, the rank test counts all arrangements. With more, the normal distribution is as
good."""
ALPHA = 0.05
"""The p-value below which a difference is decided: the accepted share of false decisions."""
POWER = 0.8
"""The share of repetitions in which `seeds_needed` seeds decide."""
MOST_SEEDS = 1_000
POWER_DRAWS = 1_000


@dataclass(frozen=True)
class Comparison:
    """`first` against `second`, in the order in which they were given."""

    difference: Interval
    """IQM of the first less that of the second."""
    probability: Interval
    """Probability of improvement: that a run of the first beats a run of the second on the same task; ties count half."""
    p_value: float
    """Of the rank test, two-sided; corrected where several pairs are compared."""
    decided: bool
    num_seeds: tuple[int, int]
    """For each group, the fewest seeds of any task."""
    seeds_needed: int | None = None
    """Seeds of each group with which the test would decide in 8 of 10 repetitions, if the true scores are distributed like the
    observed ones. None if it is decided, if there is only one seed, or if 1,000 would not be enough."""
    has_intervals: bool = True
    """Whether there are enough seeds for intervals of `difference` and `probability`."""

    @property
    def better(self) -> int:
        """0 if the first looks better, 1 if the second, -1 if ranks and IQM disagree or both are equal."""
        by_rank, by_iqm = np.sign(self.probability.value - 0.5), np.sign(self.difference.value)
        if by_rank * by_iqm < 0 or by_rank == by_iqm == 0:
            return -1
        return 0 if by_rank + by_iqm > 0 else 1


def compare(
    first: Scores, second: Scores, *, alpha: float = ALPHA, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Comparison:
    """Compare two groups. `alpha` is the accepted share of false decisions."""
    x, y = _pair(first, second)
    difference = iqm_difference(x, y, num_resamples=num_resamples, seed=seed)
    probability = probability_of_improvement(x, y, num_resamples=num_resamples, seed=seed)
    p_value = rank_test(x, y)
    fewest = (min(map(len, x)), min(map(len, y)))
    sure = resamples([*map(len, x), *map(len, y)])
    found = Comparison(difference, probability, p_value, False, fewest, has_intervals=sure)
    if found.better >= 0 and p_value < alpha:
        return replace(found, decided=True)
    needed = seeds_needed(x, y, alpha=alpha, seed=seed) if found.better >= 0 and min(fewest) > 1 else None
    return replace(found, seeds_needed=needed)


def compare_all(groups: Sequence[Scores]) -> dict[tuple[int, int], Comparison]:
    """Compare every pair (i, j), i < j. The p-values of several pairs are corrected as by Holm (1979): then a false decision
    among all pairs is as rare as for a single pair."""
    pairs = list(combinations(range(len(groups)), 2))
    strict = ALPHA / max(len(pairs), 1)
    found = {(i, j): compare(groups[i], groups[j], alpha=strict) for i, j in pairs}
    corrected, largest = {}, 0.0
    for place, pair in enumerate(sorted(pairs, key=lambda pair: found[pair].p_value)):
        c = found[pair]
        largest = max(largest, min(1.0, c.p_value * (len(pairs) - place)))
        decided = c.better >= 0 and largest < ALPHA
        needed = None if decided else c.seeds_needed
        corrected[pair] = replace(c, p_value=largest, decided=decided, seeds_needed=needed)
    return {pair: corrected[pair] for pair in pairs}


def iqm_difference(first: Scores, second: Scores, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Interval:
    """IQM of the first minus that of the second; both are resampled independently."""
    (a,), draws_a = resampled(first, ["iqm"], num_resamples=num_resamples, seed=2 * seed)
    (b,), draws_b = resampled(second, ["iqm"], num_resamples=num_resamples, seed=2 * seed + 1)
    low, high = percentiles(draws_a[0] - draws_b[0])
    return Interval(float(a - b), float(low), float(high))


def probability_of_improvement(first: Scores, second: Scores, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> Interval:
    """Mean over tasks of P(X > Y) + P(X = Y) / 2 for a run X of the first and Y of the second (Agarwal et al. 2021).

    A resample says how often each run was drawn: counts `a` [n] and `b` [m]. With the table of wins `W` [n, m] of a task, its
    value is `a W b / nm`, so no resample of the scores is made.

    >>> probability_of_improvement([[3.0, 2.0]], [[1.0, 2.0]]).value
    0.875
    """
    x, y = _pair(first, second)
    rng = make_rng(seed, "improvement")
    value, draws = 0.0, np.zeros(num_resamples)
    for a, b in zip(x, y, strict=True):
        wins = _wins(a, b)
        times_a = rng.multinomial(len(a), np.full(len(a), 1.0 / len(a)), size=num_resamples)
        times_b = rng.multinomial(len(b), np.full(len(b), 1.0 / len(b)), size=num_resamples)
        value += wins.mean()
        draws += ((times_a @ wins) * times_b).sum(axis=-1) / wins.size
    low, high = percentiles(draws / len(x))
    return Interval(float(value / len(x)), float(low), float(high))


def rank_test(first: Scores, second: Scores) -> float:
    """Two-sided p-value of the hypothesis that the groups do not differ, by permuting runs within each task.

    The statistic is the sum over tasks of wins minus losses. Its distribution is exact: the sums of ranks are counted by
    dynamic programming, ties included, and tasks are convolved. With more than 60 runs of a task it is normal instead.

    >>> round(rank_test([[4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0]]), 4)
    0.1
    """
    x, y = _pair(first, second)
    observed = sum(2.0 * (_wins(a, b) - 0.5).sum() for a, b in zip(x, y, strict=True))
    if max(len(a) + len(b) for a, b in zip(x, y, strict=True)) > EXACT_RUNS:
        spread = math.sqrt(sum(_variance(a, b) for a, b in zip(x, y, strict=True)))
        return math.erfc(max(abs(observed) - 1.0, 0.0) / spread / math.sqrt(2.0)) if spread > 0 else 1.0
    chances, lowest = np.ones(1), 0
    for a, b in zip(x, y, strict=True):
        own = _rank_sums(a, b)
        chances, lowest = np.convolve(chances, own), lowest - len(a) * len(b)
    sums = np.arange(len(chances)) + lowest
    return min(1.0, float(chances[np.abs(sums) >= abs(observed) - 1e-9].sum()))


def seeds_needed(first: Scores, second: Scores, *, alpha: float = ALPHA, seed: int = 0) -> int | None:
    """Seeds of each group, for each task, with which the rank test would decide with probability `POWER`.

    The existing runs stand for the whole population: a number of seeds is drawn from them, with replacement, 1,000 times, and
    each draw is tested by the normal form of the test (Efron and Tibshirani 1993, chapter 25). None if 1,000 seeds would not be
    enough.
    """
    x, y = _pair(first, second)
    now = max(2, min(min(map(len, x)), min(map(len, y))))
    low, high = now, now + 1
    while _power(x, y, high, alpha, seed) < POWER:  # double, then bisect
        if high >= MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _power(x, y, middle, alpha, seed) < POWER else (low, middle)
    return high


def _power(x: Sequence[Array], y: Sequence[Array], num: int, alpha: float, seed: int) -> float:
    """The share of draws of `num` seeds a group, for each task, that the test would decide."""
    rng = make_rng(seed, "power", num)
    total = np.zeros(POWER_DRAWS)
    for a, b in zip(x, y, strict=True):
        times_a = rng.multinomial(num, np.full(len(a), 1.0 / len(a)), size=POWER_DRAWS)
        times_b = rng.multinomial(num, np.full(len(b), 1.0 / len(b)), size=POWER_DRAWS)
        total += 2.0 * ((times_a @ (_wins(a, b) - 0.5)) * times_b).sum(axis=-1)
    spread = math.sqrt(len(x) * num * num * (2 * num + 1) / 3.0)
    critical = NormalDist().inv_cdf(1.0 - alpha / 2.0)
    return float((np.abs(total) - 1.0 >= critical * spread).mean())


def _wins(a: Array, b: Array) -> Array:
    """1 where a run of `a` beats one of `b`, 1/2 where they tie: `[n, m]`."""
    return np.asarray((a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :]))


def _rank_sums(a: Array, b: Array) -> Array:
    """The probability of each value of wins minus losses, from -nm to nm, if any n of the n + m runs could be those of `a`."""
    pooled = np.concatenate([a, b])
    twice = (_wins(pooled, pooled).sum(axis=1) * 2.0 + 1.0).round().astype(np.int64)  # twice the rank, ties at their mean
    n, m = len(a), len(b)
    ways = np.zeros((n + 1, int(twice.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in twice.tolist():
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    first = n * (n + 1)  # wins minus losses = twice the rank sum - n(n + 1) - nm
    return np.asarray(ways[n, first : first + 2 * n * m + 1] / math.comb(n + m, n))


def _variance(a: Array, b: Array) -> float:
    """The variance of wins minus losses over permutations of the runs, with ties."""
    n, m = len(a), len(b)
    times = np.unique(np.concatenate([a, b]), return_counts=True)[1].astype(np.float64)
    total = n + m
    return float(n * m / 3.0 * (total + 1 - (times**3 - times).sum() / (total * (total - 1))))


def _pair(first: Scores, second: Scores) -> tuple[list[Array], list[Array]]:
    x, y = (np.split(strata.values, strata.starts[1:]) for strata in (Strata(first), Strata(second)))
    if len(x) != len(y):
        raise DataError(f"both groups need the same tasks; there are {len(x)} and {len(y)}")
    return x, y
