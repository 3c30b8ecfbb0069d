"""What goes wrong in a user's environment is told with the lines of their file, and where it was; not with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from runnel.core.errors import ConfigError, DataError
from runnel.envs.registry import make_vector, probe_env
from runnel.envs.vector import VectorConfig, VectorEnv
from runnel.testing.envs import check_env

SOURCE = """
import gymnasium as gym
import numpy as np


class Env(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, at=2):
        self.at, self.count = at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.count += 1
        if self.count >= self.at:
            self.lookup("left")
        return np.zeros(3, np.float32), 0.0, False, False, {}

    def lookup(self, key):
        return {}[key]


class Quits(Env):
    def step(self, action):
        raise SystemExit(0)


class OldStep(Env):
    def step(self, action):
        return np.zeros(3, np.float32), 0.0, False, {}


class OldReset(Env):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)


class Bare(gym.Env):
    pass


class Texts(Env):
    action_space = gym.spaces.Text(3)


class Sized(Env):
    def __init__(self, size):
        super().__init__()


class Breaks(Env):
    def __init__(self):
        self.lookup("config")
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


def line_of(text: str, nth: int = 0) -> int:
    return [i for i, line in enumerate(SOURCE.splitlines(), start=1) if text in line][nth]


def play(vector: VectorEnv) -> None:
    vector.reset()
    for _ in range(40):
        vector.step(torch.zeros(2, dtype=torch.int64))


def failure(target: str, **config: Any) -> str:
    vector = make_vector(target, 2, seed=1, index0=4, config=VectorConfig(**config))
    with pytest.raises(DataError) as error:
        play(vector)
    vector.close()
    assert not getattr(error.value, "__notes__", [])
    return str(error.value)


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_a_step_that_raises_is_told_with_its_place_and_its_lines(file: Path, backend: str) -> None:
    first, *lines = failure(f"{file}:Env", backend=backend).splitlines()
    assert "(index 4, episode 0, step 2) raised KeyError: 'left' [its episode began with reset(seed=" in first
    assert lines == [
        f"  mine.py:{line_of('self.lookup')}, in step",
        '    self.lookup("left")',
        f"  mine.py:{line_of('{}[key]')}, in lookup",
        "    return {}[key]",
    ]


def test_one_that_ends_the_program_is_no_success(file: Path) -> None:
    assert "raised SystemExit: 0 [its episode began" in failure(f"{file}:Quits", backend="serial")
    assert "step(" in (report := check_env(f"{file}:Quits"))[0]
    assert "raised SystemExit: 0" in report[0]


def test_one_that_breaks_every_time_says_how_often(file: Path) -> None:
    assert "raised KeyError: 'left', for the 6th time in a row [its" in failure(f"{file}:Env", on_error="restart")


@pytest.mark.parametrize("backend", ["serial", "processes"])
def test_what_breaks_the_contract_points_at_the_method_and_at_the_command_that_explains_it(file: Path, backend: str) -> None:
    told = failure(f"{file}:OldStep", backend=backend)
    assert "step 1) raised ValueError: not enough values to unpack (expected 5, got 4)" in told
    place = f"mine.py:{line_of('def step', 2)}"
    assert told.endswith(f"\n  see {place}; `runnel check-env {file}:OldStep` explains what is wrong")
    assert "it must return (observation, reward, terminated, truncated, info)" in check_env(f"{file}:OldStep")[0]


def test_the_command_has_the_arguments_of_the_environment(file: Path) -> None:
    with pytest.raises(DataError, match=r"reset returned a ndarray; it must return \(observation, info\)") as error:
        probe_env(f"{file}:OldReset", kwargs={"at": 3})
    assert str(error.value).endswith(f"`runnel check-env {file}:OldReset --env-kwargs '{{\"at\": 3}}'` explains what is wrong")


def test_spaces_arguments_and_constructors_are_told_with_their_lines(file: Path) -> None:
    with pytest.raises(
        DataError, match=rf"\(mine.py:{line_of('class Bare')}\) has no observation_space and no action_space; set"
    ):
        probe_env(f"{file}:Bare")
    with pytest.raises(
        ConfigError, match=rf"env = '.*:Texts': action space Text is not supported.*; see mine.py:{line_of('Texts')}"
    ):
        probe_env(f"{file}:Texts")
    place = line_of("def __init__(self, size)")
    with pytest.raises(
        DataError, match=rf"making it raised TypeError: .*'size' \(mine.py:{place}\); its arguments go into env_kw"
    ):
        probe_env(f"{file}:Sized")
    with pytest.raises(DataError, match=rf"making it raised KeyError: 'config'\n  mine.py:{line_of('lookup', 2)}"):
        probe_env(f"{file}:Breaks")
    assert "making it raised KeyError: 'config'" in check_env(f"{file}:Breaks")[0]
    with pytest.raises(DataError, match=r"'CartPole-v1': making it raised TypeError: .*'nope'.*arguments go into env_kwargs"):
        probe_env("CartPole-v1", kwargs={"nope": 1})


@pytest.mark.parametrize("half", [":Env", "mine.py:"])
def test_half_a_name_is_refused(half: str) -> None:
    with pytest.raises(ConfigError, match="with a name on both sides"):
        probe_env(half)


def test_an_old_version_of_a_library_is_one_error(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"use the newest version \(-v5\)"):
        probe_env("HalfCheetah-v3")
