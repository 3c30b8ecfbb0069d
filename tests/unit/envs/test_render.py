"""Which environments can be watched, and what is seen of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from watched_envs import Broken, Counter, Drawn, Odd, Seen

from runnel.core.errors import ConfigError
from runnel.envs.render import RenderedEnv, check_renders
from runnel.envs.sketch import HEIGHT, WIDTH, cart_pole, sketch_of


def test_an_environment_that_renders_is_asked_for_it() -> None:
    env = RenderedEnv(Drawn)
    env.reset(0)
    env.step(0)
    frame = env.frame()
    assert env.fps == 4.0
    assert frame.shape == (5 * 36, 7 * 36, 3), "few pixels are drawn large"
    assert (frame == 60).all()


def test_an_image_that_the_policy_sees_is_shown() -> None:
    env = RenderedEnv(Seen, frame_stack=3)
    env.reset(0)
    obs = env.step(0)[0]
    assert obs.shape == (3, 8, 8)
    assert (env.frame() == 10).all(), "the newest of the stack"
    assert env.fps == 30.0


@pytest.mark.parametrize(
    ("make", "why"), [(Counter, "take render_mode='rgb_array'"), (Odd, r"float64 \[5, 7\]"), (Broken, "no screen")]
)
def test_what_cannot_be_drawn_is_refused_with_what_to_do(make: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=f"record.videos = 2: .*{why}"):
        check_renders(make, kwargs=None, frame_stack=0, field="record.videos", value=2)


def test_a_tensor_environment_is_played_in_its_twin() -> None:
    env = RenderedEnv("tensor:Pendulum-v1")
    obs, _ = env.reset(3)
    assert obs.shape == (3,)
    assert env.frame().shape[2] == 3
    with pytest.raises(ConfigError, match="twin"):
        RenderedEnv("tensor:FourRooms")


def test_a_small_board_has_a_colour_for_each_kind_of_object() -> None:
    pytest.importorskip("minatar")
    env = RenderedEnv("MinAtar/Breakout-v1")
    env.reset(0)
    frame = env.frame()
    assert frame.shape == (250, 250, 3)
    assert len(np.unique(frame.reshape(-1, 3), axis=0)) >= 3, "paddle, bricks and nothing"


def test_the_pole_is_drawn_where_it_is() -> None:
    """An upright pole stands over the middle of its cart; one that leans to the right does so in the picture."""
    wood = (202, 152, 101)

    def columns(state: tuple[float, ...]) -> Any:
        frame = cart_pole(state)
        assert frame.shape == (HEIGHT, WIDTH, 3)
        return np.flatnonzero((frame == wood).all(axis=2).any(axis=0))

    upright, leaning, moved = columns((0, 0, 0, 0)), columns((0, 0, 0.5, 0)), columns((1.3, 0, 0, 0))
    assert upright.mean() == pytest.approx(WIDTH / 2, abs=1)
    assert leaning.mean() > upright.mean() + 10
    assert moved.mean() == pytest.approx(WIDTH * 0.75, abs=1)


def test_every_classic_task_has_a_drawing() -> None:
    import gymnasium as gym

    for name in ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"):
        env = gym.make(name)
        env.reset(seed=0)
        draw = sketch_of(env)
        assert draw is not None
        assert 250 > draw().mean() > 150, "something, on light paper"
