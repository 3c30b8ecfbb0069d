"""Actions that plain Gymnasium refuses are refused by every back end, also where an environment is not asked again."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from runnel.core.errors import DataError
from runnel.envs.registry import evaluation_kwargs, make_vector
from runnel.envs.vector import VectorConfig

BACKENDS = [
    pytest.param(VectorConfig(backend="serial"), id="serial"),
    pytest.param(VectorConfig(backend="processes", num_workers=1), id="processes"),
    pytest.param(VectorConfig(backend="gymnasium"), id="gymnasium"),
]


@pytest.fixture(params=BACKENDS)
def vector(request: pytest.FixtureRequest) -> Any:
    made = make_vector("CartPole-v1", 2, seed=0, config=request.param)
    made.reset()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (torch.tensor([0, 2]), r"\(index 1\) was given action 2"),
        (torch.tensor([0, -1]), r"\(index 1\) was given action -1"),
        (torch.tensor([0.0, 1.0]), "actions as float32; a choice is an integer"),
        (torch.tensor([0.5, 1.7]), "actions as float32"),
        (torch.tensor([float("nan"), 1.0]), "actions as float32"),
        (torch.tensor([False, True]), "actions as bool"),
        (torch.tensor([1]), r"actions of shape \(1,\), not \(2,\)"),
        (torch.tensor([1, 0, 1]), r"actions of shape \(3,\), not \(2,\)"),
        (torch.tensor([[1, 0], [0, 1]]), r"actions of shape \(2, 2\), not \(2,\)"),
    ],
)
def test_what_gymnasium_refuses_is_refused(vector: Any, actions: torch.Tensor, message: str) -> None:
    plain = spaces.Discrete(2)
    assert actions.shape != (2,) or not all(plain.contains(a) for a in actions.numpy()), "Gymnasium's own answer"
    with pytest.raises(DataError, match=message):
        vector.step(actions)


def test_actions_of_another_width_are_refused_where_a_copy_would_broadcast_them() -> None:
    for config in (VectorConfig(backend="serial"), VectorConfig(backend="processes", num_workers=1)):
        made = make_vector("Pendulum-v1", 2, seed=0, config=config)
        made.reset()
        with pytest.raises(DataError, match=r"actions of shape \(1, 1\), not \(2, 1\)"):
            made.step(torch.zeros(1, 1))
        made.close()


class OffByOne(gym.ActionWrapper):  # type: ignore[misc]
    """A wrapper with a mistake: Gymnasium's own environment would refuse what it hands on."""

    def action(self, action: Any) -> Any:
        return action + 1


def test_a_wrapper_cannot_hand_on_what_the_environment_refuses() -> None:
    vector = make_vector(lambda: OffByOne(gym.make("CartPole-v1")), 1, seed=0)
    vector.reset()
    vector.step(torch.tensor([0]))
    with pytest.raises(DataError, match=r"AssertionError: .*invalid"):
        vector.step(torch.tensor([1]))


class Asks(gym.Env):  # type: ignore[misc]
    """Asks its own space about something else than the action that it was given."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0, 9, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        assert not self.action_space.contains(int(action) + 2)
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_the_space_of_a_users_environment_still_answers() -> None:
    vector = make_vector(Asks, 1, seed=0)
    vector.reset()
    vector.step(torch.tensor([1]))
    assert vector.out.reward.tolist() == [1.0]  # its step went past the question, to its end


def test_names_of_our_wrappers_in_a_users_environment_are_its_own() -> None:
    own = {"episodic_life": True, "reward_clip": 5.0, "frame_stack": 3}
    for target in ("CartPole-v1", "file.py:Env", "MinAtar/Breakout-v1", Asks):
        assert evaluation_kwargs(target, own) == own
    assert evaluation_kwargs("atari:Pong", {"reward_clip": True}) == {"episodic_life": False, "reward_clip": False}
    assert evaluation_kwargs("envpool:Pong-v5", own) == {**own, "episodic_life": False, "reward_clip": False}
