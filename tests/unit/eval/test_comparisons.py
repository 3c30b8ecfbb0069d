import itertools
import math

import numpy as np
import pytest
from peer_rliable import load

from runnel.core.errors import DataError
from runnel.eval.comparisons import compare, compare_all, iqm_difference, probability_of_improvement, rank_test, seeds_needed


def test_probability_of_improvement_by_hand_and_by_rliable():
    _, metrics = load()
    assert probability_of_improvement([[3.0, 2.0], [0.0]], [[1.0, 2.0], [5.0]]).value == (7 / 8 + 0) / 2
    rng = np.random.default_rng(0)
    x, y = rng.normal(0.2, 1.0, (8, 6)).round(1), rng.normal(0.0, 1.0, (8, 5)).round(1)
    assert probability_of_improvement(x, y).value == pytest.approx(metrics.probability_of_improvement(x.T, y.T), abs=1e-9)


def test_its_interval_is_that_of_rliable():
    library, metrics = load()
    rng = np.random.default_rng(1)
    x, y = rng.normal(0.3, 1.0, (5, 6)), rng.normal(0.0, 1.0, (5, 6))
    _, peer = library.get_interval_estimates({"x": (x.T, y.T)}, metrics.probability_of_improvement, reps=400)
    found = probability_of_improvement(x, y)
    error = 2.67 * (found.high - found.low) / 3.92 / math.sqrt(400)  # Monte-Carlo error of rliable's bounds
    np.testing.assert_allclose([found.low, found.high], peer["x"][:, 0], atol=4 * error)


@pytest.mark.parametrize(
    ("x", "y"), [([4.0, 5.0, 6.0], [1.0, 2.0, 3.0]), ([1.0, 2.0, 2.0, 5.0], [2.0, 3.0, 0.0]), ([1.0], [1.0])]
)
def test_the_rank_test_counts_all_arrangements(x, y):
    pooled, n = np.array(x + y), len(x)

    def wins(chosen):
        a, b = pooled[list(chosen)], np.delete(pooled, list(chosen))
        return abs(float((np.sign(a[:, None] - b[None, :])).sum()))

    all_sums = [wins(chosen) for chosen in itertools.combinations(range(len(pooled)), n)]
    assert rank_test([x], [y]) == pytest.approx(np.mean([s >= wins(range(n)) for s in all_sums]))


def test_the_rank_test_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(2)
    a, b = rng.normal(0.0, 1.0, 12), rng.normal(0.7, 1.0, 9)
    assert rank_test([a], [b]) == pytest.approx(stats.mannwhitneyu(a, b, method="exact").pvalue, abs=1e-9)
    c, d = rng.normal(0.0, 1.0, 50).round(1), rng.normal(0.3, 1.0, 60).round(1)
    assert rank_test([c], [d]) == pytest.approx(stats.mannwhitneyu(c, d, method="asymptotic").pvalue, abs=1e-9)


def test_tasks_are_convolved():
    # two tasks of 1 against 1: wins less losses is -2, 0 or 2 with chances 1/4, 1/2, 1/4
    assert rank_test([[1.0], [1.0]], [[0.0], [0.0]]) == 0.5
    assert rank_test([[1.0], [0.0]], [[0.0], [1.0]]) == 1.0
    assert rank_test([[1.0] * 3] * 5, [[1.0] * 3] * 5) == 1.0


def test_false_alarms_are_as_rare_as_promised():
    rng = np.random.default_rng(3)
    alarms = np.mean([rank_test(rng.normal(size=(2, 5)), rng.normal(size=(2, 5))) < 0.05 for _ in range(600)])
    assert alarms < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 600)


def test_three_seeds_that_never_meet_are_not_decided_and_four_are():
    three = compare([[4.0, 5.0, 6.0]], [[1.0, 2.0, 3.0]])
    assert (three.decided, three.p_value, three.better, three.seeds_needed) == (False, pytest.approx(0.1), 0, 4)
    assert three.difference.low > 0.0
    four = compare([[1.0, 2.0, 3.0, 4.0]], [[5.0, 6.0, 7.0, 8.0]])
    assert (four.decided, four.better, four.seeds_needed) == (True, 1, None)
    assert four.p_value == pytest.approx(2 / 70)
    assert four.difference.value == -4.0


def test_one_seed_and_equal_groups_decide_nothing():
    one = compare([[5.0]], [[1.0]])
    assert (one.decided, one.p_value, one.seeds_needed) == (False, 1.0, None)
    same = compare([[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0]])
    assert (same.decided, same.better, same.seeds_needed) == (False, -1, None)
    assert same.probability.value == 0.5


def test_ranks_and_iqm_that_disagree_decide_nothing():
    # five runs of eight are a little better, three far worse, and the IQM keeps one of those
    mixed = compare([[-30.0, -30.0, -30.0, 3.0, 3.0, 3.0, 3.0, 3.0]], [[2.0] * 8])
    assert mixed.probability.value == 5 / 8
    assert mixed.difference.value == (-30 + 3 + 3 + 3) / 4 - 2
    assert mixed.better == -1
    assert not mixed.decided


def test_the_seeds_needed_are_those_of_the_normal_formula():
    # shift of one standard deviation: n for 80 % power is 2 (1.96 + 0.84)^2 = 15.7, and ranks need 1/0.955 of it
    grid = np.array([-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645])
    grid /= grid.std()
    needed = seeds_needed([grid + 1.0], [grid])
    assert needed is not None
    assert 13 <= needed <= 21
    assert seeds_needed([grid + 0.01], [grid + 0.0]) is None or seeds_needed([grid + 0.01], [grid]) > 100


def test_the_difference_by_hand():
    found = iqm_difference([[3.0, 3.0]], [[1.0, 1.0]])
    assert (found.value, found.low, found.high) == (2.0, 2.0, 2.0)


def test_several_pairs_are_corrected():
    groups = [[[1.0, 2.0, 3.0, 4.0]], [[5.0, 6.0, 7.0, 8.0]], [[1.5, 2.5, 3.5, 4.5]]]
    found = compare_all(groups)
    assert list(found) == [(0, 1), (0, 2), (1, 2)]
    assert found[0, 1].p_value == pytest.approx(
        3 * 2 / 70
    )  # Holm: the smallest of three times 3, the next times 2 but not less
    assert found[1, 2].p_value == pytest.approx(3 * 2 / 70)
    assert not any(c.decided for c in found.values())
    assert compare_all(groups[:2])[0, 1].decided


def test_groups_on_other_tasks_are_refused():
    with pytest.raises(DataError, match="same tasks"):
        compare([[1.0]], [[1.0], [2.0]])
