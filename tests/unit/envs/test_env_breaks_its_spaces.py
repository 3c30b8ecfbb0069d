"""Environments that do not keep to their own spaces: numpy would broadcast, wrap or zero what they give without a word."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from runnel.core.errors import DataError
from runnel.envs.registry import make_vector, obs_flattener, probe_env
from runnel.envs.vector import VectorConfig
from runnel.envs.vector.gym_vector import GymVector, SameStep
from runnel.nets.policy import EnvPolicy

ONES = np.ones(3, np.float32)


class Scripted(gym.Env):
    """Gives `first` at reset and `later` at every step; each episode has 4 steps."""

    def __init__(self, space: Any, first: Any, later: Any, masks: tuple[Any, Any] = (None, None)) -> None:
        self.observation_space, self.action_space = space, spaces.Discrete(2)
        self._first, self._later, self._masks, self._count = first, later, masks, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._count = 0
        return self._first, self._info(self._masks[0])

    def step(self, action: Any) -> Any:
        self._count += 1
        return self._later, 1.0, False, self._count == 4, self._info(self._masks[1])

    def _info(self, mask: Any) -> dict[str, Any]:
        return {} if mask is None else {"action_mask": np.array(mask)}


def play(num_steps: int = 6, **settings: Any) -> Any:
    vector = make_vector(lambda: Scripted(**settings), 2, seed=0)
    vector.reset()
    step(vector, num_steps)
    return vector.out


def step(vector: Any, num_steps: int) -> None:
    for _ in range(num_steps):
        vector.step(torch.ones(vector.num_envs, dtype=torch.int64))


BOX, BYTES = spaces.Box(-1, 1, (3,)), spaces.Box(0, 255, (3,), np.uint8)


@pytest.mark.parametrize(
    ("space", "first", "later", "message"),
    [
        (BOX, ONES, np.ones(1, np.float32), r"step 1\) gave 'obs' of shape \(1,\), but its space says \(3,\)"),
        (BOX, ONES, 0.5, r"gave 'obs' of shape \(\)"),
        (spaces.Dict({"x": BOX}), {"x": ONES}, {"x": ONES[:1]}, r"gave 'obs/x' of shape \(1,\)"),
        (BYTES, ONES * 0.7, ONES, r"gave 'obs' as float32, but its space holds uint8"),
        (spaces.Box(0, 9, (3,), np.int32), np.int32([1, 2, 3]), ONES * 0.5, "as float32, but its space holds int32"),
        (spaces.Discrete(4), 1, 1.5, "as float64, but its space holds int64"),
        (spaces.Discrete(4), 1, np.array([1]), r"of shape \(1,\), but its space says \(\)"),
        (BYTES, np.uint8([1, 2, 3]), np.array([1, 2, 300]), "int64 with values that are no bytes"),
        (BYTES, np.uint8([1, 2, 3]), np.array([1, 2, -1]), "int64 with values that are no bytes"),
        (spaces.Discrete(4), 1, 4, "outside its space: 4"),
        (spaces.Discrete(4, start=2), 2, 1, "outside its space: -1"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([1, 3]), "outside its space"),
    ],
)
def test_an_observation_that_its_space_does_not_hold_is_refused(space: Any, first: Any, later: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        play(space=space, first=first, later=later)


class Late(Scripted):
    """Gives `later` at the third of 8 steps of an episode, and `first` at all others."""

    def step(self, action: Any) -> Any:
        self._count += 1
        return self._later if self._count == 3 else self._first, 1.0, False, self._count == 8, {}


BACKENDS = [
    pytest.param(VectorConfig(backend="serial"), id="serial"),
    pytest.param(VectorConfig(backend="processes", num_workers=1), id="processes"),
]
WRONG_LATER = [
    (BOX, ONES, np.ones(1, np.float32), r"gave 'obs' of shape \(1,\), but its space says \(3,\)"),
    (BOX, ONES, 0.5, r"gave 'obs' of shape \(\), but its space says \(3,\)"),
    (BYTES, np.uint8([1, 2, 3]), ONES * 0.7, "gave 'obs' as float32, but its space holds uint8"),
    (BYTES, np.uint8([1, 2, 3]), np.array([1, 2, 300]), "gave 'obs' as int64 with values that are no bytes"),
    (
        spaces.Dict({"x": BOX, "y": BOX}),
        {"x": ONES, "y": ONES},
        {"x": ONES, "y": np.float32(1.0)},
        r"gave 'obs/y' of shape \(\)",
    ),
]


@pytest.mark.parametrize("config", BACKENDS)
@pytest.mark.parametrize(("space", "first", "later", "message"), WRONG_LATER)
def test_every_step_is_held_against_the_space(config: Any, space: Any, first: Any, later: Any, message: str) -> None:
    """In the middle of an episode numpy would broadcast or round these without a word."""
    vector = make_vector(lambda: Late(space, first, later), 2, seed=0, config=config)
    try:
        vector.reset()
        with pytest.raises(DataError, match=rf"lambda>' \(index 0, episode 0, step 3\) {message}"):
            step(vector, 7)
        assert vector._clock == 3
    finally:
        vector.close()


class Leaves(Scripted):
    """Gives 0 for ever, and `value` from its `since`-th step on."""

    def __init__(self, value: Any, since: int, space: Any = BOX) -> None:
        super().__init__(space, np.zeros(3, space.dtype), value)
        self.steps, self.since = 0, since

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._later if self.steps >= self.since else self._first, 1.0, False, False, {}


@pytest.mark.parametrize("row", [0, 3])
def test_values_that_leave_the_box_are_found_within_64_steps(row: int) -> None:
    made: list[Leaves] = []

    def make() -> Leaves:
        made.append(Leaves(np.float32([0, 1.5, 0]), 10 if len(made) == row else 10_000))
        return made[-1]

    vector = make_vector(make, 4, seed=0)
    vector.reset()
    message = rf"\(index {row}, episode 0, step \d+\) gave 'obs' with 1.5 at \[1\], but its space says -1 to 1 there"
    with pytest.raises(DataError, match=message):
        step(vector, 10 + 64)
    assert 10 <= vector._clock < 10 + 64


@pytest.mark.parametrize("where", ["first", "last"])
def test_bounds_are_looked_at_where_episodes_begin_and_end(where: str) -> None:
    outside = np.float32([0, 0, -2])

    class Ends(Scripted):
        def step(self, action: Any) -> Any:
            return outside, 1.0, True, False, {}

    vector = make_vector(lambda: Ends(BOX, outside if where == "first" else ONES, ONES), 1, seed=0)
    if where == "last":
        vector.reset()
    broken = vector.reset if where == "first" else partial(step, vector, 1)
    with pytest.raises(DataError, match=r"gave 'obs' with -2 at \[2\], but its space says -1 to 1 there"):
        broken()


def test_bounds_are_compared_in_the_type_of_the_observation() -> None:
    """0.1 in double precision is below its float32, which is what is stored."""
    space = spaces.Box(-0.1, 0.1, (1,), np.float64)
    vector = make_vector(lambda: Scripted(space, np.array([0.1]), np.array([-0.1])), 1, seed=0)
    vector.reset()
    step(vector, 130)
    assert vector.out.obs["obs"].dtype == torch.float32
    assert vector.out.obs["obs"].tolist() == np.float32([[-0.1]]).tolist()


def test_flags_of_a_multi_binary_space_are_flags() -> None:
    space = spaces.MultiBinary(3)
    with pytest.raises(DataError, match=r"with 2 at \[1\], but its space says 0 to 1"):
        play(space=space, first=np.int8([0, 1, 1]), later=np.int8([0, 2, 1]))


def test_a_stack_of_frames_refuses_what_is_no_frame() -> None:
    frame, config = np.zeros((4, 5), np.uint8), VectorConfig(backend="serial", frame_stack=2)
    for wrong in (frame[0], frame + 0.5):
        vector = make_vector(lambda w=wrong: Late(spaces.Box(0, 255, (4, 5), np.uint8), frame, w), 1, seed=0, config=config)
        vector.reset()
        with pytest.raises(DataError, match=r"step 3\) gave 'obs' "):
            step(vector, 7)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (([False, False], [True, True]), "at least one open action"),
        (([True, True], [False, False]), "at least one open action"),
        (([True], [True]), "one flag for each of 2 actions"),
        ((None, [False, True]), "none at its first reset"),
    ],
)
def test_a_mask_that_says_nothing_is_refused(masks: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        play(space=BOX, first=ONES, later=ONES, masks=masks)


def test_bytes_in_another_integer_type_and_lists_are_fine() -> None:
    out = play(space=BYTES, first=np.array([1, 2, 255]), later=[7, 8, 9], num_steps=1)
    assert out.obs["obs"].tolist() == [[7, 8, 9]] * 2


def test_a_mask_without_open_actions_is_fine_where_the_episode_ends() -> None:
    class Ends(Scripted):
        def step(self, action: Any) -> Any:
            return ONES, 1.0, True, False, {"action_mask": np.zeros(2, bool)}

    vector = make_vector(lambda: Ends(BOX, ONES, ONES, ([True, False], None)), 1, seed=0)
    vector.reset()
    assert vector.step(torch.zeros(1, dtype=torch.int64)).action_mask.tolist() == [[True, False]]


class _Fixed:
    """A network that always wants the same."""

    noise_size = 1

    def __init__(self, action: Any) -> None:
        self._action = torch.tensor(action)

    def act(self, rows: Any, *, greedy: bool) -> dict[str, torch.Tensor]:
        return {"action": self._action.expand(len(rows["obs"]), *self._action.shape)}


class IntegerBox(Scripted):
    def __init__(self) -> None:
        super().__init__(BOX, ONES, ONES)
        self.action_space = spaces.Box(0, 3, (2,), np.int32)


def test_a_policy_gives_integers_to_a_box_of_integers() -> None:
    policy = EnvPolicy(_Fixed([1.7, 9.0]), probe_env(IntegerBox), flatten=obs_flattener(IntegerBox))
    action = policy.act(ONES)
    assert IntegerBox().action_space.contains(action)
    assert action.tolist() == [2, 3]


def test_a_masked_policy_asks_for_its_mask() -> None:
    def make() -> Scripted:
        return Scripted(BOX, ONES, ONES, ([True, False], [True, False]))

    policy = EnvPolicy(_Fixed(0), probe_env(make), flatten=obs_flattener(make))
    assert policy.act(ONES, action_mask=np.array([True, False])) == 0
    with pytest.raises(DataError, match="pass action_mask"):
        policy.act(ONES)


class Pays(Scripted):
    """Every step is worth `reward`."""

    def __init__(self, reward: Any) -> None:
        super().__init__(BOX, ONES, ONES)
        self._reward = reward

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, self._reward, *rest


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("1", r"index 0, episode 0, step 1\) gave a reward that is '1' \(str\); expected one finite number"),
        (np.ones(1), r"gave a reward that is array\(\[1\.\]\) \(ndarray of shape \(1,\)\)"),
        ([1.0], r"gave a reward that is \[1\.0\] \(list\)"),
        (None, r"gave a reward that is None \(NoneType\)"),
        (1 + 0j, r"\(complex\)"),
    ],
)
def test_a_reward_that_is_no_number_is_refused(reward: Any, message: str) -> None:
    vector = make_vector(lambda: Pays(reward), 2, seed=0)
    vector.reset()
    with pytest.raises(DataError, match=message):
        vector.step(torch.ones(2, dtype=torch.int64))


@pytest.mark.parametrize(
    "reward", [2.0, 2, True, np.float32(2.0), np.int64(2), np.array(2.0), torch.tensor(2.0), np.bool_(True)]
)
def test_a_reward_is_any_number(reward: Any) -> None:
    vector = make_vector(lambda: Pays(reward), 1, seed=0)
    vector.reset()
    for _ in range(4):
        out = vector.step(torch.ones(1, dtype=torch.int64))
        assert out.reward.tolist() == [float(reward)]
    (episode,) = vector.episodes()
    assert episode.total == 4 * float(reward)


@pytest.mark.parametrize("rewards", [1.0, [["1"], ["1"]], np.array(["1", "1"]), np.ones((2, 1)), np.ones(1)])
def test_rewards_of_a_batch_of_environments_are_one_number_for_each(rewards: Any) -> None:
    class Vec(gym.vector.VectorEnv):  # type: ignore[misc]
        metadata = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012
        num_envs = 2
        single_observation_space, single_action_space = BOX, spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.ones((2, 3), np.float32), {}

        def step(self, actions: Any) -> Any:
            return np.ones((2, 3), np.float32), rewards, np.zeros(2, bool), np.zeros(2, bool), {}

    vector = GymVector(SameStep(Vec()), seed=0, name="vec")
    vector.reset()
    with pytest.raises(DataError, match=r"'vec' .* gave rewards of shape .*; expected 2 numbers"):
        vector.step(torch.ones(2, dtype=torch.int64))


# ------------------------------------------------------------------------------------------------------------ policies
def acts_on(space: Any, obs: Any) -> Any:
    def make() -> Scripted:
        return Scripted(space, obs, obs)

    return EnvPolicy(_Any(), probe_env(make), flatten=obs_flattener(make))


class _Any(_Fixed):
    """A network that takes any observation."""

    def __init__(self) -> None:
        super().__init__(0)

    def act(self, rows: Any, *, greedy: bool) -> dict[str, torch.Tensor]:
        return {"action": self._action.expand(len(next(iter(rows.values()))))}


@pytest.mark.parametrize(
    ("space", "good", "bad", "message"),
    [
        (BOX, ONES, ONES * np.nan, "observation 'obs' holds NaN or infinity"),
        (BOX, ONES, np.array([1.0, np.inf, 0.0]), "observation 'obs' holds NaN or infinity"),
        (BOX, ONES, np.full((2, 3), np.nan), "NaN or infinity"),
        (BOX, ONES, np.nan, r"shape \(\); expected \(3,\)|NaN or infinity"),
        (BOX, ONES, np.ones(4), r"has shape \(4,\); expected \(3,\), or a batch of that"),
        (spaces.Dict({"x": BOX}), {"x": ONES}, {"x": ONES * np.nan}, "'obs/x' holds NaN"),
        (BYTES, np.uint8([1, 2, 3]), ONES * 0.5, "as float32, but its space holds uint8"),
        (BYTES, np.uint8([1, 2, 3]), ONES * np.nan, "as float32, but its space holds uint8"),
        (BYTES, np.uint8([1, 2, 3]), np.array([1, 2, 300]), "no bytes"),
        (spaces.Discrete(4), 1, np.nan, "as float64, but its space holds int64"),
        (spaces.Discrete(4), 1, 1.5, "as float64, but its space holds int64"),
    ],
)
def test_a_policy_refuses_what_it_was_never_trained_on(space: Any, good: Any, bad: Any, message: str) -> None:
    policy = acts_on(space, good)
    assert policy.act(good) == 0
    with pytest.raises(DataError, match=message):
        policy.act(bad)
