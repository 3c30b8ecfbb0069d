import numpy as np
import pytest

from runnel.core.errors import DataError
from runnel.eval.statistics import bootstrap_interval, iqm, share_interval, summarise


def test_hand_numbers():
    s = summarise([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (s.mean, s.median, s.num) == (22.0, 3.0, 5)
    assert s.iqm == 3.0  # without the lowest and the highest of five
    assert s.low < 22.0 < s.high


def test_iqm_of_multiples_of_four_is_the_trimmed_mean():
    x = np.array([8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0])
    assert float(iqm(x)) == (3 + 4 + 5 + 6) / 4
    assert iqm(np.stack([x, 2 * x])).tolist() == [4.5, 9.0]
    assert float(iqm(np.array([3.0]))) == 3.0


def test_interval_of_two_values_follows_the_binomial():
    # Resamples of {0, 1}: the mean is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4.
    assert bootstrap_interval([0.0, 1.0], confidence=0.95) == (0.0, 1.0)
    assert bootstrap_interval([0.0, 1.0], confidence=0.4) == (0.5, 0.5)


def test_interval_matches_the_normal_for_many_values():
    x = np.random.default_rng(0).normal(10.0, 2.0, 400)
    low, high = bootstrap_interval(x, num_resamples=4000)
    half = 1.96 * x.std() / 20
    assert low == pytest.approx(x.mean() - half, abs=0.02)
    assert high == pytest.approx(x.mean() + half, abs=0.02)


def test_the_same_seed_gives_the_same_interval():
    x = [1.0, 5.0, 2.0, 8.0]
    assert summarise(x) == summarise(x)
    assert bootstrap_interval(x, seed=1) != bootstrap_interval([1.0, 5.0, 2.0, 9.0], seed=1)


@pytest.mark.parametrize("values", [[], [[1.0]], [1.0, float("nan")]])
def test_bad_values_are_refused(values):
    with pytest.raises(DataError):
        summarise(values)


def test_a_share_that_never_or_always_occurred_still_has_an_interval():
    # Clopper and Pearson: (1 - p)^n = 0.025
    low, high = share_interval([0.0] * 10)
    assert (low, (1 - high) ** 10) == (0.0, pytest.approx(0.025))
    assert share_interval([1.0] * 10) == pytest.approx((1 - high, 1.0))
    assert share_interval([0.0, 1.0, 0.5]) == bootstrap_interval([0.0, 1.0, 0.5])
