"""`runnel eval --env`: a policy on another variation of its environment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import runnel as rl
from runnel.cli.main import main
from runnel.track.evals import read_evals

TINY: dict[str, Any] = {
    "env": "runnel.envs.toy:PointMass",
    "env_kwargs": {"dims": 2},
    "num_envs": 2,
    "num_steps": 4,
    "net.hidden": (4,),
    "total_updates": 1,
    "eval.episodes": 0,
    "track": (),
    "name": "run",
    "ppo.num_minibatches": 1,
}
FILE = """
import gymnasium as gym
from runnel.envs.toy import PointMass


class Short(PointMass):
    def __init__(self, dims=2, limit=3):
        super().__init__(dims=dims)
        self.limit, self.count = limit, 0

    def reset(self, **how):
        self.count = 0
        return super().reset(**how)

    def step(self, action):
        self.count += 1
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated or self.count >= self.limit, info


def two(env):
    return gym.wrappers.TimeLimit(env, 2)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    (out / "short.py").write_text(FILE)
    return rl.train("ppo", out=str(out), **TINY).path


def lengths(capsys: pytest.CaptureFixture[str], run: Path, *words: str) -> tuple[list[float], dict[str, Any]]:
    assert main(["eval", str(run), "--episodes", "2", "--json", *words]) == 0
    row = json.loads(capsys.readouterr().out)
    return row["extra"]["length"], row


def test_another_file_arguments_and_wrappers(run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(run.parent)
    own, row = lengths(capsys, run)
    assert own == [20, 20]
    assert "elsewhere" not in row
    found, row = lengths(capsys, run, "--env", "short.py:Short")
    assert found == [3, 3]
    assert row["elsewhere"] == {"env": "short.py:Short", "env_kwargs": {}}
    assert lengths(capsys, run, "--env", "short.py:Short", "--env-kwargs", '{"limit": 4}')[0] == [4, 4]
    assert lengths(capsys, run, "--env-wrapper", "short.py:two")[0] == [2, 2]
    assert main(["eval", str(run), "--episodes", "2", "--env", "short.py:Short"]) == 0
    assert 'version 1, env "short.py:Short", env_kwargs {}' in capsys.readouterr().out
    assert len(read_evals(run)[0]) == 1, "reports compare runs on their own tasks"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--env", "Pendulum-v1"], "env = 'Pendulum-v1': the policy was trained on other spaces, those of runnel.envs.toy"),
        (
            ["--env-kwargs", '{"dims": 3}'],
            r"env_kwargs = {'dims': 3}: .*observations are {'obs': '\[3\] float32'}, and were",
        ),
        (["--env", "NoSuch-v1"], "no such environment"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(
    words: list[str], why: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run), "--episodes", "2", *words]) == 2
    error = capsys.readouterr().err
    assert re.search(why, error), error
    assert len(error.splitlines()) == 1
