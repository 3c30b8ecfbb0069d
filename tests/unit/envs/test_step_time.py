"""StepTime: the environment inside is untouched, and a step takes what was asked for (never less; how much more is up to
the machine, so nothing here is timed from above)."""

import time

import numpy as np
import pytest

from runnel.core.errors import ConfigError
from runnel.envs.registry import make_env, probe_env
from runnel.envs.toy import StepTime
from runnel.testing.envs import check_env


def play(env, seed=3, num_steps=30):
    rows = [env.reset(seed=seed)[0]]
    for i in range(num_steps):
        obs, reward, terminated, truncated, _ = env.step(i % 2)
        rows.append(np.append(obs, [reward, terminated, truncated]))
        if terminated or truncated:
            rows.append(env.reset()[0])
    return np.concatenate(rows)


@pytest.mark.parametrize("settings", [{}, {"jitter": 1.0}, {"busy": True}])
def test_the_environment_inside_plays_as_if_alone(settings):
    assert np.array_equal(play(StepTime(0.05, **settings)), play(make_env("CartPole-v1")))


def test_a_step_takes_its_time():
    env = StepTime(3.0)
    env.reset(seed=0)
    start = time.perf_counter()
    env.step(0)
    assert time.perf_counter() - start >= 0.003


def test_a_busy_step_computes_and_a_sleeping_one_does_not():
    spent = {}
    for busy in (True, False):
        env = StepTime(5.0, busy=busy)
        env.reset(seed=0)
        start = time.thread_time()
        env.step(0)
        spent[busy] = time.thread_time() - start
    assert spent[True] >= 0.005
    assert spent[False] < spent[True]


def test_jitter_is_drawn_from_the_seed_and_stays_within_its_share(monkeypatch):
    lengths = []
    monkeypatch.setattr(StepTime, "_pass", lambda self, seconds: lengths.append(seconds))
    env = StepTime(2.0, jitter=0.5)
    play(env)
    first, lengths[:] = list(lengths), []
    play(env)
    assert first == lengths
    assert min(first) >= 0.001
    assert max(first) <= 0.003
    assert len(set(first)) > 10


def test_any_environment_can_be_inside():
    spec = probe_env(StepTime, kwargs={"step_ms": 0.0, "env": "runnel.envs.toy:PointMass"})
    assert spec.action.kind == "continuous"
    assert check_env(StepTime, kwargs={"step_ms": 0.0}) == []


@pytest.mark.parametrize("wrong", [{"step_ms": -1.0}, {"step_ms": float("nan")}, {"jitter": 1.5}])
def test_impossible_settings_name_the_field(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        StepTime(**wrong)
