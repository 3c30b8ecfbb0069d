"""The choice of tasks to train on: the Gaussian process, the slope and the gains against numbers computed by hand, whole
choices against other ways to choose, and runs."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from runnel.core.errors import ConfigError
from runnel.tune.contexts import LENGTH_SCALE, NOISE, ContextChooser, train_on_contexts

TARGETS = [-0.8, 0.0, 0.8]


def test_the_first_training_is_in_the_middle() -> None:
    assert ContextChooser([1.0, 2.0, 3.0, 4.0, 5.0]).choose() == 2


def test_the_set_point_is_the_posterior_of_a_gaussian_process() -> None:
    """By conditioning a joint normal distribution, one context after the other."""
    chooser = ContextChooser([0.0, 1.0, 2.0, 4.0])
    chooser.report(0, [3.0, 2.0, 1.0, 0.0])
    chooser.report(3, [0.0, 1.0, 2.0, 5.0])
    mean, spread = chooser.set_point()
    x = np.array([0.0, 0.25, 0.5, 1.0])
    y, variance = np.array([3.0, 5.0]), np.var([3.0, 2.0, 1.0, 0.0, 0.0, 1.0, 2.0, 5.0])
    joint = variance * np.exp(-((x[:, None] - x) ** 2) / (2 * LENGTH_SCALE**2))
    noisy = joint[np.ix_([0, 3], [0, 3])] + variance * NOISE * np.eye(2)
    inverse = np.linalg.inv(noisy)
    for i in range(4):
        cross = joint[i, [0, 3]]
        assert mean[i] == pytest.approx(4.0 + cross @ inverse @ (y - 4.0))
        assert spread[i] == pytest.approx(np.sqrt(variance - cross @ inverse @ cross))


def test_the_slope_is_what_policies_lost_elsewhere() -> None:
    chooser = ContextChooser([0.0, 5.0, 10.0])
    chooser.report(1, [6.0, 8.0, 6.0])
    assert chooser.slope() == pytest.approx(4.0), "2 over half of the range"
    chooser.report(0, [9.0, 7.0, 5.0])
    assert chooser.slope() == pytest.approx((2 * 0.5 * 2.0 + 0.5 * 2.0 + 1.0 * 4.0) / (2 * 0.25 + 0.25 + 1.0))


def test_gains_are_what_the_bound_promises_over_the_best_policies() -> None:
    chooser = ContextChooser([0.0, 0.5, 1.0], bonus=0.5)
    chooser.report(1, [1.0, 2.0, 1.0])
    mean, spread = chooser.set_point()
    bound = mean[0] + 0.5 * spread[0]
    slope = chooser.slope()
    expected = sum(max(0.0, bound - slope * d - b) for d, b in [(0.0, 1.0), (0.5, 2.0), (1.0, 1.0)])
    assert chooser.gains()[0] == pytest.approx(expected)
    assert chooser.gains()[1] == -np.inf


def served(places: list[int], scores: np.ndarray) -> float:
    return float(scores[places].max(0).mean())


@pytest.mark.parametrize("seed", range(5))
def test_chosen_trainings_serve_more_contexts_than_drawn_ones(seed: int) -> None:
    """Made-up returns with a linear gap: 3 trainings of 15 serve all contexts by more than half of what the best three there
    are gain over the mean of all threes."""
    rng = np.random.default_rng(seed)
    x = np.linspace(0.0, 1.0, 15)
    reached = 10.0 + np.sin(4.0 * x + rng.uniform(0.0, 6.0)) + 0.1 * rng.normal(size=15)
    scores = reached[:, None] - 8.0 * np.abs(x[:, None] - x)
    chooser, places = ContextChooser(x.tolist()), []
    for _ in range(3):
        places.append(chooser.choose())
        chooser.report(places[-1], scores[places[-1]].tolist())
    every = [served(list(threes), scores) for threes in itertools.combinations(range(15), 3)]
    assert len(set(places)) == 3
    assert served(places, scores) > np.mean(every) + 0.5 * (max(every) - np.mean(every))


def test_two_policies_serve_three_targets(tmp_path: Path) -> None:
    """Aim: a policy hits the target that it was trained at, and misses others by their distance. The middle is trained first,
    and each target is served as well as by the nearest of the two."""
    settings = {"ppo": {"lr": "linear(2e-2, 0)"}, "num_steps": 16, "total_steps": 4_096, "track": (), "out": str(tmp_path)}
    found = train_on_contexts(
        "ppo", "target", TARGETS, trainings=2, episodes=1, env="toy_envs:Aim", checkpoint={"every": 0}, seed=1, **settings
    )
    assert next(iter(found.runs)) == 0.0
    assert len(found.runs) == 2
    for target, (path, value) in found.best.items():
        assert path in found.runs.values()
        assert value == pytest.approx(-min(abs(x - target) for x in found.runs), abs=0.15)


@pytest.mark.parametrize("contexts", [[1.0], [2.0, 1.0], [0.0, float("nan")], [1.0, 1.0]])
def test_contexts_that_make_no_range_are_refused(contexts: list[float]) -> None:
    with pytest.raises(ConfigError, match="rising order"):
        ContextChooser(contexts)


def test_bad_numbers_are_refused() -> None:
    chooser = ContextChooser([0.0, 1.0])
    for scores in ([1.0], [1.0, float("inf")]):
        with pytest.raises(ConfigError, match="one for each context"):
            chooser.report(0, scores)
    for trainings in (0, 3):
        with pytest.raises(ConfigError, match="use 1 to 2"):
            train_on_contexts("ppo", "target", [0.0, 1.0], trainings=trainings)
