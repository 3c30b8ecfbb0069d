"""Two groups of runs on the same tasks: who is better, by how much, how sure, and how many seeds would decide it.

Scores of both groups are `[tasks][seeds]`, the tasks in the same order. "How much" is the difference of the interquartile means
with a bootstrap interval; "how sure" is the probability of improvement with its interval, and the p-value of a rank test that
permutes runs within each task (Wilcoxon 1945; several tasks as van Elteren 1960). The test decides, because with few seeds it
cannot claim more than the number of their arrangements allows: a bootstrap interval of three seeds can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from runnel.core.errors import DataError
from runnel.core.rng import make_rng
from runnel.eval.aggregates import NUM_RESAMPLES, Interval, Scores, Strata, percentiles, resampled
from runnel.eval.statistics import Array, resamples

EXACT_RUNS = 60
"""Up to so many runs of a task the rank test counts all arrangements; beyond, the normal distribution is as good."""
POWER = 0.8
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
    """Fewest seeds that a task has, in each group."""
    seeds_needed: int | None = None
    """Seeds of each group with which the test would decide in 8 of 10 repetitions, if what was seen is the truth; None if it is
    decided, if there is only one seed, or if 1,000 would not do."""
    has_intervals: bool = True
    """Whether there are seeds enough for the intervals of `difference` and `probability` to say something."""

    @property
    def better(self) -> int:
        """0 if the first looks better, 1 if the second, -1 if ranks and IQM do not agree or nothing speaks for either."""
        by_rank, by_iqm = np.sign(self.probability.value - 0.5), np.sign(self.difference.value)
        if by_rank * by_iqm < 0 or by_rank == by_iqm == 0:
            return -1
        return 0 if by_rank + by_iqm > 0 else 1


def compare(
    first: Scores, second: Scores, *, alpha: float = 0.05, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Comparison:
    """Everything about one pair; `alpha` is the share of false alarms that the decision may make."""
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


def compare_all(
    groups: Sequence[Scores], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[tuple[int, int], Comparison]:
    """Every pair (i, j), i < j. With several pairs p-values are corrected as Holm (1979) does, so that over all of them
    together a false decision stays as rare as for one pair alone."""
    pairs = [(i, j) for i in range(len(groups)) for j in range(i + 1, len(groups))]
    strict = 0.05 / max(len(pairs), 1)
    found = {
        pair: compare(groups[pair[0]], groups[pair[1]], alpha=strict, num_resamples=num_resamples, seed=seed) for pair in pairs
    }
    corrected, largest = {}, 0.0
    for place, pair in enumerate(sorted(pairs, key=lambda pair: found[pair].p_value)):
        c = found[pair]
        largest = max(largest, min(1.0, c.p_value * (len(pairs) - place)))
        decided = c.better >= 0 and largest < 0.05
        needed = None if decided else c.seeds_needed
        corrected[pair] = replace(c, p_value=largest, decided=decided, seeds_needed=needed)
    return {pair: corrected[pair] for pair in pairs}


def iqm_difference(
    first: Scores, second: Scores, *, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Interval:
    """IQM of the first less that of the second; both are resampled independently."""
    (a,), draws_a = resampled(first, ["iqm"], num_resamples=num_resamples, seed=2 * seed)
    (b,), draws_b = resampled(second, ["iqm"], num_resamples=num_resamples, seed=2 * seed + 1)
    low, high = percentiles(draws_a[0] - draws_b[0], confidence)
    return Interval(float(a - b), float(low), float(high))


def probability_of_improvement(
    first: Scores, second: Scores, *, confidence: float = 0.95, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Interval:
    """Mean over tasks of P(X > Y) + P(X = Y) / 2 for a run X of the first and Y of the second (Agarwal et al. 2021).

    A resample is how often each run was drawn: with the table of wins `[n, m]` of a task, its value is a product of three.

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
    low, high = percentiles(draws / len(x), confidence)
    return Interval(float(value / len(x)), float(low), float(high))


def rank_test(first: Scores, second: Scores) -> float:
    """Two-sided p-value of "which group a run belongs to makes no difference", by permuting runs within each task.

    The statistic is the sum over tasks of wins less losses. Its distribution is exact: each task's sums of ranks are counted by
    dynamic programming, ties included, and tasks are convolved. Tasks with over 60 runs use the normal distribution instead.

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


def seeds_needed(first: Scores, second: Scores, *, alpha: float = 0.05, power: float = POWER, seed: int = 0) -> int | None:
    """Seeds of each group, for each task, with which the rank test would decide with probability `power`.

    The runs that there are stand for all that could be: so many seeds are drawn from them, with replacement, 1,000 times, and
    the test (in its normal form) is made on each draw (Efron and Tibshirani 1993, chapter 25). None if 1,000 seeds would not
    do.
    """
    x, y = _pair(first, second)
    now = max(2, min(min(map(len, x)), min(map(len, y))))
    low, high = now, now + 1
    while _power(x, y, high, alpha, seed) < power:
        if high >= MOST_SEEDS:
            return None
        low, high = high, min(2 * high, MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        if _power(x, y, middle, alpha, seed) < power:
            low = middle
        else:
            high = middle
    return high


def _power(x: Sequence[Array], y: Sequence[Array], num: int, alpha: float, seed: int) -> float:
    """How often draws of `num` seeds a group, for each task, would be decided."""
    rng = make_rng(seed, "power", num)
    total = np.zeros(POWER_DRAWS)
    for a, b in zip(x, y, strict=True):
        times_a = rng.multinomial(num, np.full(len(a), 1.0 / len(a)), size=POWER_DRAWS)
        times_b = rng.multinomial(num, np.full(len(b), 1.0 / len(b)), size=POWER_DRAWS)
        total += 2.0 * ((times_a @ (_wins(a, b) - 0.5)) * times_b).sum(axis=-1)
    spread = math.sqrt(len(x) * num * num * (2 * num + 1) / 3.0)
    critical = math.sqrt(2.0) * _erfc_inverse(alpha)
    return float((np.abs(total) - 1.0 >= critical * spread).mean())


def _erfc_inverse(p: float) -> float:
    """x with erfc(x) = p, by bisection."""
    low, high = 0.0, 30.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle) > p else (low, middle)
    return high


def _wins(a: Array, b: Array) -> Array:
    """1 where a run of `a` beats one of `b`, 1/2 where they tie: `[n, m]`."""
    return np.asarray((a[:, None] > b[None, :]) + 0.5 * (a[:, None] == b[None, :]))


def _rank_sums(a: Array, b: Array) -> Array:
    """Chance of each value of wins less losses, from -nm to nm, if the n runs of `a` were any of the n + m."""
    pooled = np.concatenate([a, b])
    twice = (_wins(pooled, pooled).sum(axis=1) * 2.0 + 1.0).round().astype(np.int64)  # twice the rank, ties at their mean
    n, m = len(a), len(b)
    ways = np.zeros((n + 1, int(twice.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in twice.tolist():
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    first = n * (n + 1)  # wins less losses = twice the rank sum - n(n + 1) - nm
    return np.asarray(ways[n, first : first + 2 * n * m + 1] / math.comb(n + m, n))


def _variance(a: Array, b: Array) -> float:
    """Of wins less losses when runs are permuted, with ties."""
    n, m = len(a), len(b)
    times = np.unique(np.concatenate([a, b]), return_counts=True)[1].astype(np.float64)
    total = n + m
    return float(n * m / 3.0 * (total + 1 - (times**3 - times).sum() / (total * (total - 1))))


def _pair(first: Scores, second: Scores) -> tuple[list[Array], list[Array]]:
    rows = []
    for strata in (Strata(first), Strata(second)):
        rows.append(np.split(strata.values, strata.starts[1:]))
    if len(rows[0]) != len(rows[1]):
        raise DataError(f"both groups need the same tasks; there are {len(rows[0])} and {len(rows[1])}")
    return rows[0], rows[1]
