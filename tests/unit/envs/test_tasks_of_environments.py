"""Environments that are told what to play, on every back end: what is told is played, recorded, and played again on resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runnel.core.contracts.tasks import Draw
from runnel.core.errors import ConfigError, DataError
from runnel.core.records import Batch, Header, Segment
from runnel.core.spaces import TaskSpace
from runnel.core.trajectories import TASK_ID, TASK_PARAMS, trajectory_stream
from runnel.envs.curricula.uniform import UniformTasks, ended_episodes
from runnel.envs.device import Ladder, TensorVector
from runnel.envs.registry import make_vector, probe_env
from runnel.envs.sampler import give_tasks
from runnel.envs.segments import task_returns
from runnel.envs.vector import VectorEnv
from runnel.envs.vector.config import VectorConfig
from runnel.testing.envs import check_env

sys.path.insert(0, str(Path(__file__).parent))
from tasked_env import NoBox, Tasked

B, T = 4, 12
CPU = torch.device("cpu")
SPACE = TaskSpace((0.0, -1.0), (1.0, 1.0))


class TorchLadder:
    """The same without the mark that numpy may step it: it runs on torch, as on a GPU."""

    def __init__(self) -> None:
        self._env = Ladder()
        self.name, self.spec, self.max_steps = "torch", self._env.spec, self._env.max_steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return self._env.initial(num, generator)

    def initial_of(self, tasks: Tensor, generator: torch.Generator) -> Batch:
        return self._env.initial_of(tasks, generator)

    def transition(self, state: Any, action: Any) -> Any:
        return self._env.transition(state, action)

    def observe(self, state: Any) -> Any:
        return self._env.observe(state)


def vector_of(backend: str) -> VectorEnv:
    if backend == "numpy":
        return make_vector("tensor:Ladder", B, seed=3, tasks=True)
    if backend == "torch":
        return TensorVector(TorchLadder(), B, seed=3, tasks=True)
    workers = 2 if backend == "processes" else 0
    return make_vector(Tasked, B, seed=3, config=VectorConfig(backend=backend, num_workers=workers), tasks=True)


def shown(vector: VectorEnv) -> dict[str, np.ndarray]:
    out = vector.out
    found = {**out.obs, **out.task, "reward": out.reward, "terminated": out.terminated}
    return {k: x.clone().numpy() for k, x in found.items()}


def play(vector: VectorEnv, segments: range, *, actions: int, stop: str = "") -> list[dict[str, np.ndarray]]:
    """All that a vector shows, over segments of T steps each with its tasks; with `stop` another vector goes on in between."""
    source, seen = UniformTasks(vector.spec.tasks or SPACE, seed=5), []
    for sequence in segments:
        give_tasks(vector.out, source, sequence, {})
        if sequence == 0:
            vector.reset()
            seen.append(shown(vector))
        for t in range(T):
            rng = np.random.default_rng((sequence, t))
            vector.step(torch.from_numpy(rng.integers(0, actions, B)))
            seen.append(shown(vector))
            if stop and t == 5:
                state = vector.snapshot()
                vector.close()
                vector = vector_of(stop)
                vector.restore(state)
                assert all(np.array_equal(x, seen[-1][k]) for k, x in shown(vector).items() if k.startswith(("obs", "task")))
    vector.close()
    return seen


def equal(first: list[dict[str, np.ndarray]], second: list[dict[str, np.ndarray]]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        for name in a:
            assert np.array_equal(a[name], b[name]), name


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_what_is_told_is_played_one_after_another(backend: str) -> None:
    seen = play(vector_of(backend), range(3), actions=2)
    source, begun = UniformTasks(SPACE, seed=5), np.zeros(B, int)
    for at, now in enumerate(seen):
        assert np.array_equal(now["obs"][:, :2], now[TASK_PARAMS]), "an environment shows the task that it was told"
        sequence = max(at - 1, 0) // T
        if at and (at - 1) % T == 0 and at > 1:
            begun[:] = 0
        ended = now["terminated"] if at else np.ones(B, bool)
        for row in np.flatnonzero(ended):
            told = source.next(Draw(sequence, int(begun[row]) % 8, int(row)))
            assert now[TASK_ID][row] == told.id
            assert np.array_equal(now[TASK_PARAMS][row], told.data["task"])
            begun[row] += 1
    assert len({i for now in seen for i in now[TASK_ID].tolist()}) > 12


def test_all_back_ends_play_the_same() -> None:
    equal(play(vector_of("serial"), range(2), actions=2), play(vector_of("processes"), range(2), actions=2))
    equal(play(vector_of("numpy"), range(2), actions=4), play(vector_of("torch"), range(2), actions=4))


@pytest.mark.parametrize(
    ("before", "after"),
    [("serial", "serial"), ("serial", "processes"), ("processes", "serial"), ("numpy", "numpy"), ("torch", "torch")],
)
def test_a_restored_vector_goes_on_with_its_tasks(before: str, after: str) -> None:
    actions = 2 if before in ("serial", "processes") else 4
    equal(play(vector_of(before), range(2), actions=actions), play(vector_of(before), range(2), actions=actions, stop=after))


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_whole_segment_on_the_device_is_the_same_as_its_steps(backend: str) -> None:
    noise = torch.rand(T, B, 1, generator=torch.Generator().manual_seed(0))
    whole, steps = vector_of(backend), vector_of(backend)
    assert isinstance(whole, TensorVector)
    spec = trajectory_stream(whole.spec, num_steps=T, num_envs=B, tasks=True, logprob=False)
    arrays, seen = spec.allocate(), []
    source = UniformTasks(whole.spec.tasks or SPACE, seed=5)
    for vector in (whole, steps):
        give_tasks(vector.out, source, 0, {})
        vector.reset()
    whole.play(arrays, lambda rows: Batch(action=(4 * rows["noise"][:, 0]).long()), noise)
    seen.append(shown(steps))
    for t in range(T):
        steps.step((4 * noise[t, :, 0]).long())
        seen.append(shown(steps))
    for name in ("obs", TASK_ID, TASK_PARAMS):
        assert np.array_equal(arrays[name].numpy(), np.stack([now[name] for now in seen])), name


def test_the_returns_of_ended_episodes_are_whole_over_segments() -> None:
    vector, source = vector_of("serial"), UniformTasks(SPACE, seed=5)
    spec, returns = trajectory_stream(vector.spec, num_steps=3, num_envs=B, tasks=True), task_returns(B, source, device=CPU)
    found, expected = [], []
    for sequence in range(5):
        give_tasks(vector.out, source, sequence, {})
        if not sequence:
            vector.reset()
        arrays = spec.allocate()
        returns.begin(arrays)
        for t in range(3):
            for name in (TASK_ID, TASK_PARAMS):
                arrays[name][t].copy_(vector.out.task[name])
            vector.step(torch.zeros(B, dtype=torch.int64))
            for name, now in (("rewards/env", vector.out.reward), ("terminated", vector.out.terminated)):
                arrays[name][t].copy_(now)
            expected += [e.total for e in vector.episodes()]
        returns.end(arrays)
        found += list(ended_episodes({"trajectories": [Segment(0, spec, Header(sequence=sequence), arrays)]}))
    assert [total for _, total in found] == pytest.approx(expected, rel=1e-6)
    for task, total in found:
        steps = 2 + int(2 * (task[1] + 1))
        assert total == pytest.approx(task[0] * steps, rel=1e-5), "each step of an episode pays the first number of its task"


def test_bad_tasks_are_refused() -> None:
    assert probe_env(Tasked).tasks == SPACE
    with pytest.raises(DataError, match=r"task_space is .*finite bounds"):
        probe_env(NoBox)
    with pytest.raises(ConfigError, match=r"vector\.backend.*use serial or processes"):
        make_vector("CartPole-v1", 2, seed=0, config=VectorConfig(backend="gymnasium"), tasks=True)


def test_the_check_finds_an_environment_that_ignores_its_tasks() -> None:
    assert list(check_env(Tasked)) == []
    report = check_env(Tasked, kwargs={"ignores": True})
    assert "ignores its tasks" in str(report)
    assert "finite bounds" in str(check_env(NoBox))
