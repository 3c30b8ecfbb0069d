"""What a new user tries first: taken where it is clear what is meant, else refused in a sentence, with nothing left behind."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from torch import nn

import runnel as rl
from runnel.cli.main import main
from runnel.core.resolve import load_object
from runnel.report.write import write_report
from runnel.track.folder import RunFolder

TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 4,
    "vector.backend": "serial",
    "total_updates": 2,
    "eval.episodes": 0,
    "track": (),
    "ppo.num_minibatches": 1,
}


class Mine(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(3, np.float32), 0.0, False, True, {}


class Plain(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose arguments Gymnasium does not know."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return rl.train("ppo", env="CartPole-v1", out=str(tmp_path_factory.mktemp("runs")), name="run", **TINY)


def tiny(tmp_path: Path, **settings: Any) -> rl.Run:
    return rl.train("ppo", out=tmp_path / "out", **{**TINY, **settings})


# --------------------------------------------------------------------------------------------------------------- refused
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a learner": (lambda p: rl.train(rl.agents.PPOLearner), r"recipe = 'PPOLearner': give the name of a recipe \('ppo'\), or"),
    "a slip": (lambda p: rl.train("pppo"), r"recipe = 'pppo': unknown; .*; did you mean ppo\?"),
    "a made network": (lambda p: tiny(p, network=nn.Linear(4, 2)), r"network = 'Linear': is made already; give the function"),
    "another network": (
        lambda p: tiny(p, network=lambda: 3),
        r"it is called as make\(env_spec, seed\); see .*mistakes_of_new_users\.py:\d+",
    ),
    "a number as callback": (lambda p: tiny(p, on_update=5), r"on_update = 5: give a function of a row"),
    "a made environment": (lambda p: tiny(p, env=Mine()), r"env = 'Mine': is made already.*env=lambda: Mine\(\.\.\.\)"),
    "an unknown wrapper": (lambda p: tiny(p, env=Plain(gym.make("CartPole-v1"))), r"env = 'Plain': is made already"),
    "a vector": (lambda p: tiny(p, env=gym.make_vec("CartPole-v1", 2)), r"is a vector that is made already; give one"),
    "one sink": (lambda p: tiny(p, track="csv"), r"track = 'csv': expected a list; write \['csv'\]"),
    "another start": (lambda p: tiny(p, init_from="nosuch"), r"init_from = 'nosuch': there is no such folder"),
    "no run": (lambda p: rl.load(None), r"run = None: give the path of a run's folder"),  # type: ignore[arg-type]
    "no policy": (lambda p: rl.evaluate(5, "CartPole-v1"), r"policy = 'int': give a policy"),  # type: ignore[arg-type]
    "no examples": (
        lambda p: rl.TextTask("x", train=["a"], eval=["b"], reward=lambda p, c: [0.0], max_tokens=3),  # type: ignore[list-item]
        r"train holds a str; give rl.Example",
    ),
    "another recipe's config": (
        lambda p: rl.train_config("dqn", load_object("runnel.recipes.ppo:Config", "x")(out=str(p / "out"))),
        r"config = 'runnel.recipes.ppo.Config': is no config of the recipe 'dqn'",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_meant_is_refused_in_words_and_leaves_nothing(tmp_path: Path, what: str) -> None:
    call, told = REFUSED[what]
    with pytest.raises(rl.RunnelError, match=told):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_policy_is_told_from_its_environment(run: rl.Run) -> None:
    policy = rl.load(run)
    with pytest.raises(rl.ConfigError, match="env = None: a policy knows no environment"):
        rl.evaluate(policy)
    with pytest.raises(rl.ConfigError, match=r"episodes = '3': use a whole number"):
        rl.evaluate(policy, "CartPole-v1", episodes="3")  # type: ignore[arg-type]
    with pytest.raises(rl.RunnelError, match="the checkpoint does not fit the run as it is set up now"):
        rl.load(run, env="Acrobot-v1")
    with pytest.raises(rl.ConfigError, match=r"folder = '/proc/nosuch': no folder can be made there"):
        rl.export(run, "/proc/nosuch")


# ----------------------------------------------------------------------------------------------------------------- taken
def test_a_run_or_its_path_is_measured_on_its_own_environment_or_on_another(run: rl.Run) -> None:
    found = rl.evaluate(run, episodes=2)
    assert found.returns == rl.evaluate(str(run.path), episodes=2).returns
    policy, made = rl.load(run.path), gym.make("CartPole-v1")
    there = rl.evaluate(policy, "CartPole-v1", episodes=2)
    assert there.returns == rl.evaluate(run.path, "CartPole-v1", episodes=2).returns
    assert there.returns == rl.evaluate(policy, made, episodes=2).returns
    made.reset(seed=0)  # it is left open


def test_a_made_environment_is_made_again_from_its_spec(tmp_path: Path) -> None:
    plain = tiny(tmp_path, env=gym.make("CartPole-v1", sutton_barto_reward=True, render_mode="rgb_array"))
    config = RunFolder(plain.path).read_config()
    assert (config["env"], config["env_kwargs"]) == ("CartPole-v1", {"sutton_barto_reward": True})
    rl.load(plain)  # any process can: it has a name
    short = tiny(tmp_path, env=gym.make("CartPole-v1", max_episode_steps=3), total_updates=4)
    assert max(row["metrics"]["episode_length"] for row in short.rows() if "episode_length" in row["metrics"]) <= 3
    wrapped = tiny(tmp_path, env=gym.wrappers.TimeLimit(gym.make("CartPole-v1"), 2), total_updates=4)
    assert max(row["metrics"]["episode_length"] for row in wrapped.rows() if "episode_length" in row["metrics"]) <= 2


# ----------------------------------------------------------------------------------------------------------- the command
def said(line: str, capsys: Any) -> str:
    assert main(line.split()) in (1, 2)
    return str(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("train ppo --ppo.learning-rate 0.1", "ppo.learning_rate = '0.1': unknown field; did you mean --ppo.lr?"),
        ("train dqn --learning-rate=1", "did you mean --dqn.lr?"),
        ("train td3 --env CartPole-v1 --total-steps 2", "env = 'CartPole-v1': TD3 needs one box of continuous actions"),
        ("train ddpg --env CartPole-v1 --total-steps 2", "env = 'CartPole-v1': DDPG needs one box of continuous actions"),
        ("train dqn --env Pendulum-v1 --total-steps 2", "env = 'Pendulum-v1': DQN needs discrete actions"),
        ("train dqn --total-steps 2", "total_steps = 2: ends before the first update"),
        ("train dpo --task pairs.jsonl", "pairs of answers (prompt, chosen, rejected) are given as --pairs FILE"),
        ("board --port 99999", "port = 99999: use 1 to 65535"),
        ("train ppo --init-from nosuch", "init_from = 'nosuch': there is no such folder"),
    ],
)
def test_hints(line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n' * 2)
    assert told in said(line, capsys)
    assert not list((tmp_path / "runs").iterdir())


def test_a_reader_that_has_enough_ends_no_command_in_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    for args in (["--help"], ["list", "--help"]):
        read, write = os.pipe()
        os.close(read)
        monkeypatch.setattr(sys, "stdout", os.fdopen(write, "w"))
        assert main(args) == 141
        sys.stdout.close()


def test_files_of_a_run_that_are_gone_are_named(run: rl.Run, tmp_path: Path, capsys: Any) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(
        rl.core.CheckpointError, match=r"it had \d+, the last at version 2, and they were deleted; restore them"
    ):
        rl.load(copy)
    (copy / "run.json").unlink()
    assert "run.json" in said(f"resume {copy} --total-updates 9", capsys)


def test_text_as_the_mean_of_an_evaluation_is_skipped_and_told(run: rl.Run, tmp_path: Path) -> None:
    copy = shutil.copytree(run.path, tmp_path / "copy")
    row = '{"kind": "eval", "version": 1, "steps": 8, "mean": "high", "low": 0, "high": 1, "num": 2, "returns": [1.0]}\n'
    with (copy / "metrics.jsonl").open("a") as file:
        file.write(row)
    assert "has the wrong shape; skipped" in write_report([copy], tmp_path / "report.html").read_text()
