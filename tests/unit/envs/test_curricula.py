"""Curricula of environments against their equations in numpy, and their state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.contracts.tasks import Curriculum, Draw, TaskSource
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Header, Segment
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TaskSpace
from runnel.core.trajectories import TASK_ID, TASK_PARAMS, trajectory_stream
from runnel.envs.curricula.alp_gmm import GaussianTasks, ProgressHistory, fit_mixture
from runnel.envs.curricula.config import CurriculumConfig
from runnel.envs.curricula.levels import LevelHistory, ReplayedLevels
from runnel.envs.curricula.uniform import UniformTasks

SPACE = TaskSpace((0.0, -2.0), (1.0, 2.0))
ENV = EnvSpec({"obs": ArraySpec((1,))}, ActionSpec("discrete", num_actions=2), tasks=SPACE)
T, B = 5, 2


def batch_of(rng: np.random.Generator, ids: np.ndarray) -> tuple[dict[str, list[Segment]], Batch, np.ndarray]:
    """A segment in which each step plays a task `[T, B]`, and what a learner says of it."""
    spec = trajectory_stream(ENV, num_steps=T, num_envs=B, tasks=True)
    arrays = spec.allocate()
    arrays[TASK_ID][:-1] = torch.from_numpy(ids)
    arrays[TASK_PARAMS][:-1] = torch.from_numpy(np.stack([ids / 10, ids / 5 - 2], axis=-1).astype(np.float32))
    value, returns = rng.standard_normal((2, T * B)).astype(np.float32)
    batch = Batch(value=torch.from_numpy(value), **{"return": torch.from_numpy(returns)})
    errors = np.abs(returns - value).reshape(T, B)
    return {"trajectories": [Segment(0, spec, Header(), arrays)]}, batch, errors


def levels_of(**more: Any) -> LevelHistory:
    return LevelHistory(SPACE, **{"capacity": 10, "temperature": 0.5, "staleness": 0.3, **more})


def test_uniform_tasks_fill_their_space_and_are_a_function_of_the_turn() -> None:
    source: TaskSource = UniformTasks(SPACE, seed=3)
    tasks = np.stack([source.next(Draw(s, 0, row)).data["task"] for s in range(40) for row in range(25)])
    assert tasks.dtype == np.float32
    assert tasks.min(axis=0) == pytest.approx([0.0, -2.0], abs=0.02)
    assert tasks.mean(axis=0) == pytest.approx([0.5, 0.0], abs=0.08)
    assert tasks.max(axis=0) == pytest.approx([1.0, 2.0], abs=0.02)
    again = UniformTasks(SPACE, seed=3).next(Draw(7, 2, 5))
    assert again.id == source.next(Draw(7, 2, 5)).id != source.next(Draw(7, 2, 6)).id


def test_levels_are_scored_by_the_mean_size_of_their_advantages() -> None:
    rng, history = np.random.default_rng(0), levels_of()
    ids = np.array([[1, 2], [1, 2], [3, 2], [3, 1], [3, 1]])
    segments, batch, errors = batch_of(rng, ids)
    metrics = history.see(segments, batch)
    assert history.ids == [1, 2, 3]
    assert history.scores[:3] == pytest.approx([errors[ids == i].mean() for i in (1, 2, 3)])
    assert history.params[:3] == pytest.approx(np.array([[0.1, 0.05], [0.2, 0.1], [0.3, 0.15]]))
    assert metrics == {"tasks/levels": 3.0, "tasks/score": pytest.approx(history.scores[:3].mean())}
    with pytest.raises(DataError, match="needs a learner with a critic"):
        history.see(segments, Batch())


def test_shares_are_those_of_the_paper() -> None:
    history = levels_of()
    for task_id, score in ((4, 0.2), (5, 0.9), (6, 0.5), (4, 0.3)):
        history._take(task_id, np.full(2, task_id / 10), score)
    rank, last = np.array([3, 1, 2]), np.array([4, 2, 3])
    by_score = rank ** (-1 / 0.5) / (rank ** (-1 / 0.5)).sum()
    by_age = (4 - last) / (4 - last).sum()
    assert history.shares() == pytest.approx(0.7 * by_score + 0.3 * by_age)


def test_a_full_memory_lets_the_least_go() -> None:
    history = levels_of(capacity=3)
    for task_id, score in ((1, 0.5), (2, 0.1), (3, 0.9), (4, 0.05), (5, 0.2)):
        history._take(task_id, np.full(2, task_id / 10), score)
    assert history.ids == [1, 5, 3], "4 scored less than 2, which was the least, and 5 scored more"


@given(st.lists(st.tuples(st.integers(0, 20), st.floats(0, 1)), min_size=1, max_size=40))
def test_levels_and_their_state(played: list[tuple[int, float]]) -> None:
    history: Curriculum = levels_of()
    assert isinstance(history, LevelHistory)
    for task_id, score in played:
        history._take(task_id, np.full(2, task_id / 20), score)
    assert history.shares().sum() == pytest.approx(1.0)
    assert len(set(history.ids)) == len(history.ids) <= 10
    other = levels_of()
    other.restore(history.snapshot())
    known = history.history()
    assert all(torch.equal(x, known[k]) for k, x in other.history().items())
    source = ReplayedLevels(SPACE, seed=1, replay=1.0)
    drawn = [source.next(Draw(s, history=known)).data["task"] for s in range(20)]
    places = {(row[0], 4 * row[1] - 2) for row in history.params[: len(history.ids)].astype(np.float32)}
    if 2 * len(history.ids) >= 10:
        assert all(any(np.allclose(task, place) for place in places) for task in drawn)


def test_progress_is_the_change_from_the_nearest_task() -> None:
    rng, history = np.random.default_rng(0), ProgressHistory(SPACE, seed=0, fit_every=500, max_gaussians=3)
    tasks, returns = rng.random((60, 2)), rng.random(60)
    for task, total in zip(tasks, returns, strict=True):
        history.add(task, total)
    expected = [0.0]
    for i in range(1, 60):
        near = ((tasks[:i] - tasks[i]) ** 2).sum(axis=1).argmin()
        expected.append(abs(returns[i] - returns[near]))
    assert history._newest()[1] == pytest.approx(expected)
    history.add(tasks[3], 5.0)
    history.add(tasks[3], 6.0)
    assert history._newest()[1][-1] == pytest.approx(1.0), "of equally near ones the newest counts"


def test_a_mixture_finds_the_parts_that_made_the_data() -> None:
    rng = np.random.default_rng(1)
    means = np.array([[0.2, 0.2, 0.9], [0.8, 0.3, 0.1], [0.5, 0.9, 0.5]])
    data = np.concatenate([m + 0.03 * rng.standard_normal((80, 3)) for m in means])
    starts = [np.random.default_rng(s) for s in range(5)]
    two, best = (min((fit_mixture(data, k, start) for start in starts), key=lambda found: found.criterion) for k in (2, 3))
    assert best.criterion < two.criterion
    order = [np.abs(best.means - m).sum(axis=1).argmin() for m in means]
    assert sorted(order) == [0, 1, 2]
    assert best.means[order] == pytest.approx(means, abs=0.02)
    assert [np.sqrt(np.diag(c)) for c in best.covariances] == pytest.approx(np.full((3, 3), 0.032), abs=0.006)
    # one Gaussian is the data's own mean and covariance, and the criterion is 2p - 2 log likelihood
    one = fit_mixture(data, 1, np.random.default_rng(0))
    covariance = np.cov(data.T, bias=True) + 1e-4 * np.eye(3)
    assert one.covariances[0] == pytest.approx(covariance, abs=1e-6)
    apart = data - data.mean(axis=0)
    distance = np.einsum("ni,ij,nj->n", apart, np.linalg.inv(covariance), apart)
    logs = -0.5 * (distance + np.log(np.linalg.det(2 * np.pi * covariance)))
    assert one.criterion == pytest.approx(2 * 9 - 2 * logs.sum(), rel=1e-6)


@settings(deadline=None, max_examples=5)
@given(st.integers(0, 100))
def test_tasks_come_from_where_progress_is_and_the_state_is_whole(seed: int) -> None:
    rng, history = np.random.default_rng(seed), ProgressHistory(SPACE, seed=seed, fit_every=100, max_gaussians=4)
    for _ in range(230):  # returns change in a corner only
        task = rng.random(2)
        history.add(task, rng.random() if (task > 0.6).all() else 0.0)
    source = GaussianTasks(SPACE, seed=1, explore=0.0)
    tasks = np.stack([source.next(Draw(s, history=history.history())).data["task"] for s in range(200)])
    inside = ((tasks[:, 0] > 0.5) & (tasks[:, 1] > 0.0)).mean()
    assert inside > 0.6, "a quarter of the space"
    assert (tasks >= [0.0, -2.0]).all()
    assert (tasks <= [1.0, 2.0]).all()
    other = ProgressHistory(SPACE, seed=seed, fit_every=100, max_gaussians=4)
    other.restore(history.snapshot())
    for each in (history, other):
        more = np.random.default_rng(9)
        for _ in range(80):
            each.add(more.random(2), more.random())
    assert all(torch.equal(x, other.history()[k]) for k, x in history.history().items())


def test_bad_settings() -> None:
    for wrong in ({"replay": 1.5}, {"temperature": 0.0}, {"staleness": -0.1}, {"fit_every": 5}, {"max_gaussians": 1}):
        with pytest.raises(ConfigError, match=r"curriculum\."):
            CurriculumConfig(**wrong)
