import numpy as np
import pytest
from peer_rliable import load

from runnel.core.errors import ConfigError, DataError
from runnel.eval.aggregates import aggregate, resampled
from runnel.eval.profiles import efficiency_curve, performance_profile
from runnel.eval.statistics import percentiles


def arrays(tasks=26, seeds=10, seed=0):
    rng = np.random.default_rng(seed)
    return rng.gamma(2.0, 0.5, (tasks, 1)) + rng.normal(0.0, 0.4, (tasks, seeds))


def peer_aggregates(metrics):
    functions = (metrics.aggregate_iqm, metrics.aggregate_median, metrics.aggregate_mean, metrics.aggregate_optimality_gap)
    return lambda scores: np.array([function(scores) for function in functions])


def test_hand_numbers():
    scores = [[0.0, 2.0], [1.0, 1.0], [3.0, 5.0]]  # task means 1, 1, 4; sorted 0 1 1 2 3 5, of which one is cut on each side
    found = {name: interval.value for name, interval in aggregate(scores, num_resamples=10).items()}
    assert found == pytest.approx({"iqm": 7 / 4, "median": 1.0, "mean": 2.0, "optimality_gap": 1 - (0.5 + 1 + 1) / 3})


@pytest.mark.parametrize(("tasks", "seeds"), [(26, 10), (1, 5), (7, 3), (3, 1)])
def test_point_estimates_are_those_of_rliable(tasks, seeds):
    _, metrics = load()
    scores = arrays(tasks, seeds)
    ours = [interval.value for interval in aggregate(scores, num_resamples=1).values()]
    np.testing.assert_allclose(ours, peer_aggregates(metrics)(scores.T), atol=1e-9)


def test_intervals_are_those_of_rliable():
    # A percentile of R draws of a statistic with standard error s has a Monte-Carlo error of s sqrt(q (1-q) / R) / density: for
    # the 2.5 % bound of a normal, 2.67 s / sqrt(R). With R = 2,000 and 20,000 that is 0.063 s; four times it is 0.25 s.
    library, metrics = load()
    scores = arrays()
    _, peer = library.get_interval_estimates({"x": scores.T}, peer_aggregates(metrics), reps=2000)
    values, draws = resampled(scores, ["iqm", "median", "mean", "optimality_gap"], num_resamples=20_000)
    for bound, expected in zip(percentiles(draws), peer["x"], strict=True):
        assert (np.abs(bound - expected) < 0.25 * draws.std(axis=-1)).all()
    assert (draws.std(axis=-1) > 0.0).all()
    np.testing.assert_allclose(draws.mean(axis=-1)[2], values[2], atol=0.01 * draws[2].std() * 3)


def test_each_task_resamples_its_own_seeds():
    _, draws = resampled([[0.0, 0.0, 0.0], [9.0, 9.0], [5.0]], ["mean", "median"], num_resamples=50)
    assert (draws == np.array([[14 / 3], [5.0]])).all()
    # a task of {0, 1}: the mean over both tasks is 10 + {0, 1/2, 1} halves with chances 1/4, 1/2, 1/4
    _, draws = resampled([[0.0, 1.0], [10.0, 10.0]], ["mean"], num_resamples=8000)
    shares = [np.isclose(draws[0], 5 + value / 2).mean() for value in (0.0, 0.5, 1.0)]
    np.testing.assert_allclose(shares, [0.25, 0.5, 0.25], atol=4 * np.sqrt(0.25 / 8000))


def test_the_same_numbers_twice():
    scores = arrays(4, 3)
    assert aggregate(scores, num_resamples=100) == aggregate(scores, num_resamples=100)
    assert aggregate(scores, num_resamples=100) != aggregate(scores, num_resamples=100, seed=1)


@pytest.mark.parametrize("scores", [[], [[]], [[1.0, float("nan")]], [[[1.0]]]])
def test_bad_scores_are_refused(scores):
    with pytest.raises(DataError, match="scores"):
        aggregate(scores)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="unknown"):
        aggregate([[1.0]], ["best"])
    with pytest.raises(ConfigError, match="at least 1"):
        aggregate([[1.0]], num_resamples=0)
    with pytest.raises(ConfigError, match="confidence"):
        aggregate([[1.0]], confidence=95)


def test_a_profile_by_hand_and_by_rliable():
    library, _ = load()
    found = performance_profile([[0.0, 1.0], [2.0, 4.0]], [-1.0, 0.0, 1.5, 4.0])
    assert found.value.tolist() == [1.0, 0.75, 0.5, 0.0]
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()
    scores, at = arrays(), np.linspace(0.0, 3.0, 15)
    peer, bounds = library.create_performance_profile({"x": scores.T}, at, reps=1000)
    ours = performance_profile(scores, at)
    np.testing.assert_allclose(ours.value, peer["x"], atol=1e-9)
    # four times the Monte-Carlo error of a bound (see above), and one run of 260 more, as shares move in such steps
    spread = np.maximum(ours.high - ours.low, 1e-9) / 3.92
    assert (
        np.abs(np.stack([ours.low, ours.high]) - bounds["x"]) < 4 * 2.67 * spread * np.sqrt(1 / 1000 + 1 / 2000) + 1 / 260
    ).all()


def test_an_efficiency_curve_is_the_iqm_at_each_position():
    _, metrics = load()
    rng = np.random.default_rng(1)
    curves = [rng.normal(task, 1.0, (5, 4)).cumsum(axis=1) for task in range(3)]
    band = efficiency_curve(curves, [1, 2, 3, 4])
    for i in range(4):
        assert band.value[i] == pytest.approx(metrics.aggregate_iqm(np.stack([c[:, i] for c in curves], axis=1)), abs=1e-9)
    assert (band.low < band.value).all()
    assert (band.value < band.high).all()
    with pytest.raises(DataError, match="curves"):
        efficiency_curve(curves, [1, 2])
    with pytest.raises(DataError, match="finite"):
        efficiency_curve([np.full((2, 1), np.inf)], [1])
