"""Composite actions: what is stored, what the environment gets back, and the masks that belong to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.core.action_codec import env_action, env_action_rows, flat_mask, join_masks, read_mask
from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import ActionSpec
from runnel.envs.spaces import action_spec, env_spec, flatten_obs
from runnel.envs.vector.serial import action_rows

NESTED = spaces.Dict(
    {
        "aim": spaces.Tuple((spaces.Box(-1, 1, (2, 1)), spaces.Discrete(3, start=5))),
        "buttons": spaces.MultiBinary((1, 2)),
        "tools": spaces.MultiDiscrete([[2], [4]], dtype=np.int32, start=[[0], [-3]]),
        "whole": spaces.Box(0, 9, (1,), np.int64),
    }
)
OBS = spaces.Discrete(2)


def test_multi_discrete_is_one_array_of_integers() -> None:
    spec = action_spec(spaces.MultiDiscrete([2, 3, 4], start=[0, 1, -2]))
    assert (spec.kind, spec.shape, spec.dtype) == ("multi", (3,), torch.int64)
    assert (spec.size, spec.noise_size, spec.mask_size) == (9, 3, 9)
    assert [part.start for part in spec.parts] == [0, 1, -2]
    rows = action_rows(action_spec(spaces.MultiDiscrete([2, 3, 4], start=[0, 1, -2])))(
        torch.tensor([[1, 0, 3], [0, 2, 0]]).numpy()
    )
    assert [row.tolist() for row in rows] == [[1, 1, 1], [0, 3, -2]]


def test_multi_binary_is_pairs() -> None:
    space = spaces.MultiBinary((2, 2))
    spec = action_spec(space)
    assert (spec.shape, spec.size, spec.mask_size, spec.dtype) == ((4,), 8, 8, torch.int64)
    (row,) = action_rows(action_spec(space))(torch.tensor([[1, 0, 0, 1]]).numpy())
    assert row.tolist() == [[1, 0], [0, 1]]
    assert row.dtype == np.int8
    assert space.contains(row)


def test_a_nested_action_is_stored_flat_and_rebuilt() -> None:
    spec = action_spec(NESTED)
    assert (spec.shape, spec.dtype) == ((8,), torch.float32)
    assert (spec.size, spec.noise_size, spec.mask_size) == (2 + 3 + 4 + 6 + 1, 8, 3 + 4 + 6)
    stored = torch.tensor([[0.25, -7.0, 2.0, 1.0, 0.0, 1.0, 3.0, 4.6], [0.0] * 8])
    first, second = action_rows(spec)(stored.numpy())
    assert list(first) == ["aim", "buttons", "tools", "whole"]
    assert isinstance(first["aim"], tuple)
    assert first["aim"][0].tolist() == [[0.25], [-1.0]]
    assert first["aim"][1] == 7
    assert first["buttons"].tolist() == [[1, 0]]
    assert first["tools"].tolist() == [[1], [0]]
    assert first["tools"].dtype == np.int32
    assert first["whole"].tolist() == [5]
    assert NESTED.contains(first)
    assert NESTED.contains(second)
    assert second["tools"].tolist() == [[0], [-3]]


def test_several_rows_at_once_are_what_a_gymnasium_vector_takes() -> None:
    together = env_action(action_spec(NESTED))(np.zeros((3, 8), np.float32))
    assert batch_space(NESTED, 3).contains(together)
    one = env_action(action_spec(NESTED))(np.zeros(8, np.float32))
    assert NESTED.contains(one)


def test_plain_actions_are_as_they_were() -> None:
    assert action_spec(spaces.Discrete(3, start=2)) == ActionSpec("discrete", num_actions=3, start=2)
    box = action_spec(spaces.Box(-1, 1, (2,)))
    assert (box.kind, box.shape, box.parts, box.leaves, box.mask_size) == ("continuous", (2,), (), (), 0)
    assert env_action_rows(action_spec(spaces.Discrete(3, start=2)))(np.array([0, 1])) == [2, 3]


def test_bounds_of_a_box_in_double_precision_are_kept() -> None:
    space = spaces.Box(0.0, 0.1, (1,), np.float64)
    assert space.contains(env_action(action_spec(space))(np.array([9.0], np.float32)))


def leaf_spaces() -> st.SearchStrategy[spaces.Space[Any]]:
    shape = st.lists(st.integers(1, 3), min_size=1, max_size=2)
    return st.one_of(
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-3, 3)),
        st.builds(lambda s, t: spaces.Box(-2, 3, tuple(s), t), shape, st.sampled_from([np.float32, np.float64, np.int16])),
        st.builds(lambda s: spaces.MultiBinary(s), shape),
        st.builds(lambda n, start: spaces.MultiDiscrete(n, start=[start] * len(n)), shape, st.integers(-2, 2)),
    )


def action_spaces() -> st.SearchStrategy[spaces.Space[Any]]:
    return st.recursive(
        leaf_spaces(),
        lambda inner: st.one_of(
            st.builds(lambda xs: spaces.Tuple(xs), st.lists(inner, min_size=1, max_size=3)),
            st.builds(lambda xs: spaces.Dict(xs), st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3)),
        ),
        max_leaves=6,
    )


def random_actions(spec: ActionSpec, num: int, rng: np.random.Generator) -> np.ndarray:
    """Network actions: choices within their range, boxes far outside of theirs."""
    if spec.kind == "discrete":
        return rng.integers(0, spec.num_actions, num)
    if spec.kind == "continuous":
        return rng.normal(0, 5, (num, *spec.shape)).astype(np.float32)
    parts = [random_actions(part, num, rng).reshape(num, -1) for part in spec.parts]
    return np.concatenate(parts, axis=1).astype(np.float32 if spec.dtype == torch.float32 else np.int64)


@settings(max_examples=150, deadline=None)
@given(space=action_spaces(), seed=st.integers(0, 2**16))
def test_any_composite_space_accepts_what_it_gets(space: spaces.Space[Any], seed: int) -> None:
    spec = action_spec(space)
    actions = random_actions(spec, 4, np.random.default_rng(seed))
    assert actions.shape[1:] == spec.shape
    for action in action_rows(spec)(actions):
        assert space.contains(action), (space, action)
    assert spec == action_spec(space)
    assert hash(spec) == hash(action_spec(space))


@pytest.mark.parametrize(
    ("space", "says"),
    [
        (spaces.Text(3), "Text"),
        (spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2))))}), "Sequence at 'a/1'"),
        (spaces.Tuple(()), "empty"),
        (None, "NoneType"),
    ],
)
def test_what_cannot_be_an_action_is_named(space: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        action_spec(space)


PAIR = action_spec(spaces.MultiDiscrete([2, 3]))
FLAT = [True, False, False, True, True]


@pytest.mark.parametrize(
    "raw",
    [FLAT, np.array(FLAT), np.array(FLAT, np.int8), ([1, 0], [0, 1, 1]), [np.array([1, 0]), (0, 1, 1)]],
)
def test_every_form_of_a_mask_of_parts(raw: Any) -> None:
    assert read_mask(raw, PAIR).tolist() == FLAT
    assert read_mask(raw, PAIR).dtype == bool


def test_a_batch_of_part_masks_keeps_its_rows() -> None:
    assert join_masks((np.ones((4, 2)), np.zeros((4, 3)))).tolist() == [[True, True, False, False, False]] * 4


def test_masks_by_name_follow_the_order_of_the_space_and_may_leave_parts_open() -> None:
    spec = action_spec(NESTED)
    mask = flat_mask({"tools": ((1, 0), (0, 0, 1, 0)), "aim": (None, [0, 1, 0])}, spec)
    assert mask.astype(int).tolist() == [0, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 0]
    batch = flat_mask({"aim": (None, np.array([[0, 1, 0], [1, 0, 0]]))}, spec)
    assert batch.shape == (2, 13)
    assert batch[:, :3].tolist() == [[False, True, False], [True, False, False]]


@pytest.mark.parametrize(
    ("raw", "spec", "says"),
    [
        ([1, 0, 1], PAIR, r"shape \(3,\); it needs one flag for each of 5 actions"),
        ([1, 1, 0, 0, 0], PAIR, "part 1 of the action has none"),
        ([0, 0], ActionSpec("discrete", num_actions=2), "at least one open action"),
        ([1], ActionSpec("discrete", num_actions=2), "one flag for each of 2 actions"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(raw: Any, spec: ActionSpec, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_mask(raw, spec)


def test_a_mask_needs_something_discrete() -> None:
    assert env_spec(OBS, spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1))), has_mask=True).has_mask
    with pytest.raises(ConfigError, match="action_mask"):
        env_spec(OBS, spaces.Tuple((spaces.Box(0, 1), spaces.Box(0, 1))), has_mask=True)


def test_a_mask_inside_an_observation_may_be_nested() -> None:
    action = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiDiscrete([2, 3])})
    mask_space = spaces.Dict({"a": spaces.MultiBinary(2), "b": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiBinary(3)))})
    observation = spaces.Dict({"x": spaces.Discrete(2), "action_mask": mask_space})
    spec = env_spec(observation, action)
    raw = {"x": 0, "action_mask": {"b": ([1, 0], [0, 0, 1]), "a": [0, 1]}}
    flat = flatten_obs(observation)(raw)
    assert spec.has_mask
    assert sorted(flat) == ["action_mask", "obs/x"]
    assert flat_mask(flat["action_mask"], spec.action).astype(int).tolist() == [0, 1, 1, 0, 0, 0, 1]
