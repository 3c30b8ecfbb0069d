"""Episodes that begin at a saved state go on exactly as the one in which it was saved, on every back end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv

from runnel.core.action_codec import read_mask
from runnel.core.codec import from_bytes
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import State
from runnel.core.trajectories import TASK_PARAMS
from runnel.envs.device import TensorVector
from runnel.envs.device.started import StartedTensors
from runnel.envs.registry import make_tensor_env, make_vector
from runnel.envs.spaces import action_spec
from runnel.envs.started import StartedEnv
from runnel.envs.starts import START_TASKS, SavesStates, Starts
from runnel.envs.vector import VectorConfig, VectorEnv

sys.path.insert(0, str(Path(__file__).parent))
from saved_env import LongerSteps, NoState, OwnNoise, Walk

OWN = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1")


def saved_after(make: Callable[[], gym.Env], steps: int, *, seed: int = 3) -> tuple[bytes, list[Any], list[Any]]:
    """A state after some steps, the actions of eight more, and what the environment showed after each."""
    env = StartedEnv(make())
    env.reset(seed=seed)
    env.action_space.seed(seed)
    for _ in range(steps):
        env.step(env.action_space.sample())
    record, actions = env.save(), [env.action_space.sample() for _ in range(8)]
    return record, actions, [env.step(action)[0] for action in actions]


@pytest.mark.parametrize("name", [*OWN, "HalfCheetah-v5", "Hopper-v5", "Humanoid-v5"])
def test_a_known_environment_goes_on_exactly(name: str) -> None:
    if name not in OWN:
        pytest.importorskip("mujoco")
    record, actions, due = saved_after(lambda: gym.make(name), 7)
    env = StartedEnv(gym.make(name), [b"", record])
    env.reset(seed=8)
    for _ in range(3):
        env.step(env.action_space.sample())
    env.reset(seed=9, options={"task": np.array([1.0], np.float32)})
    for action, obs in zip(actions, due, strict=True):
        np.testing.assert_array_equal(env.step(action)[0], obs)


@pytest.mark.parametrize("how", [{}, {"masked": True}, {"in_obs": True}])
def test_its_first_observation_and_mask_are_those_of_the_state(how: dict[str, bool]) -> None:
    env = StartedEnv(Walk(**how))
    env.reset(seed=1)
    shown = env.step(2)
    found = StartedEnv(Walk(**how)).reset(seed=5, options={"state": env.save()})
    for one, two in ((shown[0], found[0]), (shown[4], found[1])):
        assert np.array_equal(one, two) if isinstance(one, np.ndarray) else one.keys() == two.keys()
        if isinstance(one, dict):
            assert all(np.array_equal(one[k], two[k]) for k in one)


@pytest.mark.parametrize(
    "mask", [(np.array([1, 0]), np.array([0, 1])), [np.array([1, 0]), np.array([0, 1, 1])], {"x": np.array([1, 0])}]
)
def test_a_mask_is_saved_in_the_form_that_it_has(mask: Any) -> None:
    """One of each part, of the same size or not, or a dict that leaves out some parts."""

    class Parts(Walk):
        def _seen(self) -> Any:
            return super()._seen()[0], {"action_mask": mask}

    y = gym.spaces.Discrete(3 if isinstance(mask, dict) else len(mask[1]))
    action = action_spec(gym.spaces.Dict(x=gym.spaces.Discrete(2), y=y))
    env = StartedEnv(Parts())
    env.reset(seed=1)
    found = env.reset(seed=5, options={"state": env.save()})[1]["action_mask"]
    assert np.array_equal(read_mask(found, action), read_mask(mask, action))


def test_a_state_may_name_one_tensor_twice() -> None:
    class Tensors(Walk):
        def get_state(self) -> State:
            goal = torch.ones(2)
            return {**super().get_state(), "goal": goal, "first": goal, "part": goal[:1]}

    env = StartedEnv(Tensors())
    env.reset(seed=1)
    assert from_bytes(env.save())["state"]["first"].tolist() == [1.0, 1.0]


def test_random_numbers_are_of_the_seed_unless_those_of_the_state_are_wanted() -> None:
    record, actions, due = saved_after(Walk, 2)

    def noise(seed: int, *, exact: bool) -> list[float]:
        env = StartedEnv(Walk(), [record], exact=exact)
        env.reset(seed=seed, options={"task": [0.0]})
        return [float(env.step(action)[0][1]) for action in actions]

    assert noise(1, exact=True) == noise(2, exact=True) == [float(obs[1]) for obs in due]
    assert noise(1, exact=False) == noise(1, exact=False) != noise(2, exact=False)


def test_only_an_episode_that_began_at_a_state_is_cut() -> None:
    record, *_ = saved_after(Walk, 1)
    env, lengths = StartedEnv(Walk(), [record], cut=3), []
    for number in (0.0, -1.0, 0.0):
        env.reset(seed=1, options={"task": [number]})
        lengths.append(next(t for t in range(1, 20) if env.step(1)[3]))
    assert lengths == [3, 12, 3]


@pytest.mark.parametrize("cut", [0, 5])
def test_what_draws_from_its_own_generator_is_restored_by_its_state(cut: int) -> None:
    """As it is without start states: a replay of its episode would draw other numbers."""
    env = StartedEnv(OwnNoise())
    env.reset(seed=1)
    env.step(2)
    states = [env.save()]

    def made() -> VectorEnv:
        vector = make_vector(OwnNoise, 2, seed=3, tasks=True, starts=Starts(lambda: states, cut=cut))
        vector.out.next_task[TASK_PARAMS].copy_(torch.tensor([0.0, -1.0]).view(2, 1, 1))
        vector.reset(7)
        return vector

    def played(vector: VectorEnv) -> list[list[float]]:
        shown = []
        for _ in range(12):
            out = vector.step(torch.ones(2, dtype=torch.int64))
            shown.append([*out.obs["obs"].flatten().tolist(), *out.truncated.tolist()])
        return shown

    first, second = made(), made()
    for _ in range(3):
        first.step(torch.ones(2, dtype=torch.int64))
    second.restore(first.snapshot())
    assert played(second)[:2] == played(first)[:2]  # until an episode ends that began at a state
    if cut:
        lengths = [e.length for e in second.episodes() if e.env == 0]
        assert lengths[0] == cut


def vector_of(backend: str, starts: Starts, num: int, *, tasks: bool = True) -> VectorEnv:
    if backend == "numpy":
        return make_vector("tensor:CartPole-v1", num, seed=3, tasks=tasks, starts=starts)
    if backend == "torch":
        states = list(starts.open_states())
        arrays = starts.on_tensors(make_tensor_env("tensor:CartPole-v1"))
        plain = StartedTensors(make_tensor_env("tensor:CartPole-v1"), arrays._states, START_TASKS)  # type: ignore[attr-defined]
        assert states
        return TensorVector(plain, num, seed=3, tasks=tasks)
    env, config = "CartPole-v1", VectorConfig(backend=backend, num_workers=2 if backend == "processes" else 0)
    return make_vector(env, num, seed=3, config=config, tasks=tasks, starts=starts)


@pytest.mark.parametrize("backend", ["serial", "processes", "numpy", "torch"])
def test_every_back_end_begins_where_it_is_told(backend: str) -> None:
    """Rows 0 and 2 at states 1 and 0, row 1 as it likes; and again when their episodes end."""
    recorder = vector_of(
        "numpy" if backend == "torch" else "serial" if backend == "processes" else backend, Starts(), 2, tasks=False
    )
    assert isinstance(recorder, SavesStates)
    out = recorder.reset(5)
    shown, states = [], []
    for _ in range(4):
        out = recorder.step(torch.ones(2, dtype=torch.int64))
        shown.append(out.obs["obs"][1].clone())
        states.append(recorder.save_state(1))
    vector = vector_of(backend, Starts(lambda: states), 3)
    try:
        vector.out.next_task[TASK_PARAMS].copy_(torch.tensor([1.0, -1.0, 0.0]).view(3, 1, 1))
        first = vector.reset(7).obs["obs"].clone()
        assert torch.equal(first[0], shown[1])
        assert torch.equal(first[2], shown[0])
        assert first[1].abs().max() <= 0.05  # an own start of CartPole
        assert vector.out.task[TASK_PARAMS].flatten().tolist() == [1.0, -1.0, 0.0]
        following = vector.step(torch.ones(3, dtype=torch.int64)).obs["obs"].clone()
        torch.testing.assert_close(following[0], shown[2])  # numpy and torch round otherwise
        torch.testing.assert_close(following[2], shown[1])
        ended: set[int] = set()
        for _ in range(40):
            out = vector.step(torch.ones(3, dtype=torch.int64))
            for row in torch.nonzero(out.terminated).flatten().tolist():
                ended.add(row)
                if row != 1:
                    assert torch.equal(out.obs["obs"][row], shown[1 if row == 0 else 0])
        assert ended == {0, 1, 2}
    finally:
        vector.close()


def test_what_cannot_be_saved_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"its state cannot be saved.*get_state\(\) and set_state\(state\)"):
        StartedEnv(NoState())
    counted = gym.wrappers.TimeAwareObservation(gym.make("CartPole-v1"))
    with pytest.raises(ConfigError, match="no wrapper that holds a state"):
        StartedEnv(counted)
    with pytest.raises(ConfigError, match=r"env = .*CartPoleVectorEnv.*its state cannot be saved.*a class of vectors"):
        make_vector(CartPoleVectorEnv, 2, seed=1, starts=Starts())


def test_states_that_do_not_fit_are_named() -> None:
    record, *_ = saved_after(lambda: gym.make("Pendulum-v1"), 2)
    for states, match in (
        ([record], r"start state 0 does not fit environment 'CartPole-v1'.*shape \(2,\).*record the states again"),
        ([b"", b"no state at all"], "start state 1 does not fit"),
    ):
        env = StartedEnv(gym.make("CartPole-v1"), states)
        with pytest.raises(DataError, match=match):
            env.reset(seed=1, options={"task": [len(states) - 1]})
    with pytest.raises(DataError, match="start state 2 is not there; there are 2, counted from 0"):
        env.reset(options={"task": [2]})
    tensors = make_tensor_env("tensor:CartPole-v1")
    for given, match in ((record, "which has other leaves"), (b"nothing", "start state 0 is damaged")):
        with pytest.raises(DataError, match=match):
            Starts(lambda given=given: [given]).on_tensors(tensors)
    with pytest.raises(ConfigError, match=r"curriculum\.cut = 5: an environment of tensors"):
        Starts(cut=5).on_tensors(tensors)


def test_another_version_of_an_environment_goes_on_elsewhere() -> None:
    """What a run tries before it starts (tests/system/test_start_states.py)."""
    record, actions, due = saved_after(Walk, 2)
    env = StartedEnv(LongerSteps(), [record], exact=True)
    env.reset(seed=1, options={"task": [0.0]})
    assert any(not np.array_equal(env.step(action)[0], obs) for action, obs in zip(actions, due, strict=True))
