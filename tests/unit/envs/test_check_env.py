import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import DictGoal, Slow

from runnel.envs.toy import BadEnv, Counter, MaskedBandit, PointMass, TruncationTrap
from runnel.testing.envs import check_env


@pytest.mark.parametrize(
    "target",
    ["CartPole-v1", "Pendulum-v1", TruncationTrap, MaskedBandit, DictGoal, PointMass, Counter, lambda: Slow(step_s=0.0)],
)
def test_good_environments_pass(target):
    assert check_env(target) == []


def test_an_instance_is_checked_and_left_open():
    env = gym.make("CartPole-v1")
    assert check_env(env) == []
    env.reset(seed=0)


def broken(**methods):
    return type("Broken", (TruncationTrap,), methods)


def stepper(obs=None, reward=1.0, terminated=False, truncated=False):
    value = np.zeros(1, np.float32) if obs is None else obs
    return lambda self, action: (value, reward, terminated, truncated, {})


CASES = {
    "old reset": (broken(reset=lambda self, *, seed=None, options=None: np.zeros(1, np.float32)), r"reset returned a ndarray"),
    "no seed": (broken(reset=lambda self: (np.zeros(1, np.float32), {})), r"reset\(seed=...\) raised"),
    "old step": (broken(step=lambda self, action: (np.zeros(1), 1.0, False, {})), "step returned a tuple of 4"),
    "shape": (broken(step=stepper(np.zeros(2, np.float32))), r"shape \(2,\), its space says \(1,\)"),
    "dtype": (broken(step=stepper(np.zeros(1, np.float64))), "dtype float64, its space says float32"),
    "bounds": (broken(step=stepper(np.full(1, 7, np.float32))), "outside of its space"),
    "terminated": (broken(step=stepper(terminated=0)), "terminated is a int; it must be a bool"),
    "truncated": (broken(step=stepper(truncated=None)), "truncated is a NoneType; it must be a bool"),
    "reward type": (broken(step=stepper(reward=np.ones(1))), "reward is a ndarray; it must be a float"),
    "nan reward": (lambda: BadEnv("nan_reward"), "reward is not finite"),
    "nan obs": (lambda: BadEnv("nan_obs"), "not finite|outside of its space"),
    "raises": (lambda: BadEnv("raise"), "raised RuntimeError: the environment broke"),
    "random": (lambda: BadEnv("random"), "not deterministic under a seed"),
    "no space": (broken(__init__=lambda self: None), "Broken has no observation_space and no action_space"),
    "space": (broken(observation_space=spaces.Text(3), action_space=None, __init__=lambda self: None), "not supported"),
}


@pytest.mark.parametrize("name", CASES)
def test_broken_environments_are_described(name):
    target, says = CASES[name]
    findings = check_env(target)
    assert len(findings) == 1
    assert re.search(says, findings[0])


def test_masks_are_checked():
    class Closed(MaskedBandit):
        def reset(self, *, seed=None, options=None):
            obs, _ = super().reset(seed=seed)
            return obs, {"action_mask": np.zeros(4, np.int8)}

    assert "no action at all" in check_env(Closed)[0]

    class Short(MaskedBandit):
        def reset(self, *, seed=None, options=None):
            obs, _ = super().reset(seed=seed)
            return obs, {"action_mask": np.ones(3, np.int8)}

    assert "one entry per action, (4,)" in check_env(Short)[0]


def test_a_part_of_a_dict_is_named():
    class Part(DictGoal):
        def _obs(self):
            return {"place": self._place, "goal": {"offset": np.zeros(1, np.float64)}}

    (finding,) = check_env(Part)
    assert finding.startswith(
        "the observation['goal']['offset'] has dtype float64, its space says float32; return it as .astype"
    )

    class Missing(DictGoal):
        def _obs(self):
            return {"place": self._place}

    assert "lacks 'goal'" in check_env(Missing)[0]
    assert isinstance(Missing().observation_space, spaces.Dict)
