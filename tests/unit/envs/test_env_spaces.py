import importlib.util

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from toy_envs import DictGoal

from runnel.core.errors import ConfigError
from runnel.envs.known import KNOWN
from runnel.envs.registry import SeveralAgentsError, make_env, make_team_env, make_vector, obs_flattener, probe_env
from runnel.envs.spaces import action_spec, env_spec, flatten_obs, obs_leaves
from runnel.envs.toy import MaskedBandit, PointMass
from runnel.envs.vector.cpu_base import obs_writer
from runnel.envs.vector.serial import action_rows

HAS_ATARI = importlib.util.find_spec("ale_py") is not None

NESTED = spaces.Dict(
    {
        "a": spaces.Dict({"b": spaces.Box(-1, 1, (2,), np.float64), "c": spaces.Discrete(3, start=5)}),
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
        "action_mask": spaces.MultiBinary(4),
    }
)
RAW = {
    "a": {"b": np.array([0.5, -0.5]), "c": 6},
    "image": np.array([[1, 2], [3, 255]], np.uint8),
    "pair": (np.array([1, 0], np.int8), np.array([1, 2])),
    "action_mask": np.array([1, 0, 1, 0], np.int8),
}


def test_nested_observations_become_flat_leaves():
    flat = flatten_obs(NESTED)(RAW)
    assert {k: v.tolist() for k, v in flat.items()} == {
        "obs/a/b": [0.5, -0.5],
        "obs/a/c": [0, 1, 0],
        "obs/image": [[1, 2], [3, 255]],
        "obs/pair/0": [1, 0],
        "obs/pair/1": [0, 1, 0, 0, 1],
        "action_mask": [True, False, True, False],
    }
    assert flat["obs/image"].dtype == np.uint8
    assert flat["obs/a/b"].dtype == np.float32


def test_the_spec_agrees_with_the_flat_leaves_and_finds_the_mask():
    spec = env_spec(NESTED, spaces.Discrete(4))
    flat = flatten_obs(NESTED)(RAW)
    assert spec.has_mask
    assert {k: leaf.shape for k, leaf in spec.obs.items()} == {k: v.shape for k, v in flat.items() if k != "action_mask"}
    assert spec.obs["obs/image"].dtype == torch.uint8


def test_a_batch_of_observations_keeps_its_front_dimension():
    batch = {"a": {"b": np.zeros((3, 2)), "c": np.array([5, 6, 7])}, "image": np.zeros((3, 2, 2), np.uint8)}
    batch |= {"pair": (np.zeros((3, 2)), np.zeros((3, 2), int)), "action_mask": np.ones((3, 4))}
    flat = flatten_obs(NESTED)(batch)
    assert flat["obs/a/c"].tolist() == np.eye(3).tolist()
    assert flat["obs/pair/1"].shape == (3, 5)


def test_writer_writes_what_flatten_says():
    leaves = obs_leaves(NESTED)
    buffers = {leaf.key: np.zeros((2, *leaf.spec.shape), np.float32) for leaf in leaves}
    obs_writer(leaves, buffers)(1, RAW)
    flat = flatten_obs(NESTED)(RAW)
    for key, buffer in buffers.items():
        assert np.array_equal(buffer[1], flat[key])
        assert not buffer[0].any()


def test_discrete_actions_get_their_start():
    assert action_rows(action_spec(spaces.Discrete(3, start=-1)))(torch.tensor([0, 2]).numpy()) == [-1, 1]
    assert env_spec(spaces.Discrete(2), spaces.Discrete(3, start=-1)).action.start == -1


def test_box_actions_are_clipped_in_dtype_and_shape():
    space = spaces.Box(np.array([[-1.0], [0.0]]), np.array([[1.0], [2.0]]), dtype=np.float64)
    first, second = action_rows(action_spec(space))(torch.tensor([[[-3.0], [0.5]], [[0.25], [9.0]]]).numpy())
    assert (first.tolist(), second.tolist()) == ([[-1.0], [0.5]], [[0.25], [2.0]])
    assert first.dtype == np.float64
    assert space.contains(second)
    whole = action_rows(action_spec(spaces.Box(0, 5, (1,), np.int32)))(torch.tensor([[1.6]]).numpy())[0]
    assert whole.tolist() == [2]
    assert whole.dtype == np.int32


@pytest.mark.parametrize(
    ("obs", "action", "names"),
    [
        (spaces.Text(4), spaces.Discrete(2), "Text"),
        (spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2)), "Sequence"),
        (spaces.Dict({"action_mask": spaces.MultiBinary(2), "x": spaces.Discrete(2)}), spaces.Box(0, 1), "action_mask"),
        (spaces.Dict({"action_mask": spaces.MultiBinary(2)}), spaces.Discrete(2), "empty"),
    ],
)
def test_unsupported_spaces_are_named(obs, action, names):
    with pytest.raises(ConfigError, match=names):
        env_spec(obs, action)


def test_probe_reads_masks_from_the_reset_info():
    assert probe_env(MaskedBandit).has_mask
    taxi = max(name for name in gym.registry if name.startswith("Taxi-v"))
    assert probe_env(taxi).has_mask
    assert probe_env(taxi).obs["obs"].shape == (500,)
    spec = probe_env("Pendulum-v1")
    assert (spec.action.kind, spec.action.low, spec.action.high, spec.has_mask) == ("continuous", (-2.0,), (2.0,), False)
    assert sorted(probe_env(DictGoal).obs) == ["obs/goal/offset", "obs/place"]
    assert probe_env("tensor:CartPole-v1") == probe_env("CartPole-v1")


def test_every_way_to_name_an_environment(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from runnel.envs.toy import PointMass\n\ndef small(dims=1):\n    return PointMass(dims=dims)\n")
    for target in ("runnel.envs.toy:PointMass", f"{file}:small", PointMass, lambda dims: PointMass(dims)):
        env = make_env(target, kwargs={"dims": 3})
        assert isinstance(env.unwrapped, PointMass)
        assert env.observation_space.shape == (3,)
    assert make_env("CartPole-v1").spec.id == "CartPole-v1"
    assert obs_flattener("tensor:CartPole-v1")([1, 2, 3, 4])["obs"].tolist() == [1, 2, 3, 4]
    assert obs_flattener("CartPole-v1")(np.zeros(4))["obs"].dtype == np.float32


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("CartPoole-v1", "CartPole-v1"),
        ("CartPole-v9", "CartPole"),
        pytest.param("ALE/Pong-v5", r"runnel\[atari\]", marks=pytest.mark.skipif(HAS_ATARI, reason="Atari is there")),
        ("mine.py", "file.py:factory"),
        ("runnel.envs.toy:Nothing", "has no 'Nothing'"),
        ("no_such_module:Env", "cannot import"),
        ("math:pi", "not callable"),
        ("builtins:dict", "gymnasium.Env"),
        ("tensor:Nope-v0", "tensor:CartPole-v1"),
    ],
)
def test_a_missing_environment_says_what_to_do(target, says):
    with pytest.raises(ConfigError, match=says) as raised:
        probe_env(target)
    assert raised.value.field == "env"


@pytest.mark.skipif(importlib.util.find_spec("ale_py") is None, reason="Atari is not installed")
def test_a_game_that_does_not_exist_is_not_taken_for_a_missing_package():
    with pytest.raises(ConfigError, match="did you mean ALE/Pong-v5"):
        make_env("ALE/Pong-v9")


@pytest.mark.skipif(importlib.util.find_spec("mujoco") is not None, reason="mujoco is installed")
def test_mujoco_advice_where_it_is_missing():
    with pytest.raises(ConfigError, match=r"runnel\[mujoco\]"):
        make_env("HalfCheetah-v5")


def test_the_list_names_real_environments():
    for target in KNOWN:
        if target.startswith(("ALE/", "HalfCheetah")):
            continue
        try:
            make_vector(target, 1, seed=0).close()
        except SeveralAgentsError:
            team = make_team_env(target)
            assert team.possible_agents
            team.close()
    assert "CartPole-v1" in gym.registry
