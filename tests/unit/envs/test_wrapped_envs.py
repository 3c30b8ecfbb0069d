"""Wrappers of one's own: around training, evaluation, videos and checks alike, in the order given, on every back end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import wrappers_of_users as own

import runnel as rl
from runnel.cli.main import main
from runnel.core.errors import ConfigError
from runnel.envs.registry import choose_backend, make_env, make_vector, with_wrappers
from runnel.envs.render import RenderedEnv
from runnel.envs.vector.config import VectorConfig
from runnel.track.folder import RunFolder

FILE = own.__file__
TINY: dict[str, Any] = {
    "num_envs": 2,
    "num_steps": 8,
    "net.hidden": (4,),
    "total_updates": 2,
    "eval.episodes": 2,
    "track": (),
    "ppo.num_minibatches": 1,
}


def test_the_first_is_the_innermost() -> None:
    plain = gym.make("CartPole-v1").reset(seed=3)[0]
    for names, seen in (([own.Plus, own.Double], (plain + 1) * 2), ([own.Double, own.Plus], plain * 2 + 1)):
        assert np.allclose(make_env("CartPole-v1", wrappers=names).reset(seed=3)[0], seen)
    assert make_env("CartPole-v1", wrappers=[f"{FILE}:five", "gymnasium.wrappers:FlattenObservation"]).unwrapped.spec.id


def test_back_ends_play_the_same_wrapped_episodes() -> None:
    target = with_wrappers("CartPole-v1", ["wrappers_of_users:Plus", own.five])
    found = []
    for config in (VectorConfig(backend="serial"), VectorConfig(backend="processes", num_workers=2)):
        vector = make_vector(target, 2, seed=1, config=config)
        try:
            seen = [vector.reset().obs["obs"].clone()]
            for _ in range(12):
                seen.append(vector.step(torch.zeros(2, dtype=torch.int64)).obs["obs"].clone())
            found.append((torch.stack(seen), [e.length for e in vector.episodes()]))
        finally:
            vector.close()
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1] == [5, 5, 5, 5]


def test_a_vector_that_would_leave_them_out_is_not_chosen() -> None:
    assert choose_backend("CartPole-v1", 64).config.backend == "gymnasium"
    wrapped = choose_backend(with_wrappers("CartPole-v1", [own.Plus]), 64, cores=1)
    assert wrapped.config.backend == "serial"
    assert "a step takes about" not in choose_backend(own.Plus, 2, cores=2).text, "nothing is known of a user's own"
    heavy = with_wrappers("HalfCheetah-v5", [own.Plus])
    assert choose_backend(heavy, 8, cores=4).config.backend == "processes", "what is known of the environment still counts"


def test_a_run_trains_evaluates_loads_and_resumes_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(FILE).parent)
    names = ["wrappers_of_users.py:wide", "wrappers_of_users.py:five"]
    run = rl.train("ppo", wrappers=names, out=str(tmp_path), **TINY)
    assert RunFolder(run.path).read_config()["wrappers"] == [f"{Path(FILE).parent}/{name}" for name in names]
    assert run.eval is not None
    assert run.eval["lengths"] == [5, 5]
    monkeypatch.chdir(tmp_path)
    policy = rl.load(run.path)
    assert policy.act(np.zeros(8, np.float32)) in (0, 1)
    assert rl.evaluate(policy, "CartPole-v1", episodes=2, wrappers=[own.wide, own.five]).returns == [5.0, 5.0]
    assert rl.resume(run.path, total_updates=3, **{"ppo.lr": 1e-3}).eval["mean"] == 5.0  # type: ignore[index]
    with pytest.raises(ConfigError, match=r"wrappers = .*a run is of one task"):
        rl.resume(run.path, total_updates=4, wrappers=[own.wide])


def test_a_function_of_this_process_is_taken_where_it_can_go(tmp_path: Path) -> None:
    run = rl.train("ppo", wrappers=[lambda env: own.five(env)], out=str(tmp_path), **TINY)
    assert RunFolder(run.path).read_config()["wrappers"] == ["live:wrappers[0]"]
    with pytest.raises(ConfigError, match=r"pass it again as wrappers=") as caught:
        rl.load(run.path)
    assert caught.value.field == "wrappers"
    assert rl.load(run.path, wrappers=[lambda env: own.five(env)]).act(np.zeros(4, np.float32)) in (0, 1)
    with pytest.raises(ConfigError, match="live in this process only") as caught:
        rl.train("ppo", wrappers=[lambda env: env], launcher="local", out=str(tmp_path), **TINY)
    assert caught.value.field == "wrappers[0]"


def test_a_video_shows_the_wrapped_one() -> None:
    env = RenderedEnv(with_wrappers("CartPole-v1", [own.five]))
    env.reset(0)
    assert env.frame().shape[2] == 3
    assert [env.step(0)[3] for _ in range(5)] == [False, False, False, False, True]
    env.close()


@pytest.mark.parametrize(
    ("env", "wrapper", "why"),
    [
        ("CartPole-v1", f"{FILE}:needs_more", r"wrappers_of_users.py:needs_more'.*missing a required argument: 'amount'"),
        ("CartPole-v1", f"{FILE}:nothing", "it gave a NoneType; a wrapper returns an environment"),
        ("CartPole-v1", f"{FILE}:NUMBER", "it is not callable"),
        ("CartPole-v1", f"{FILE}:gone", "has no 'gone'"),
        ("CartPole-v1", "TimeLimit", "write module:name or path/to/file.py:name"),
        ("tensor:CartPole-v1", f"{FILE}:five", "no Gymnasium form to wrap"),
        ("envpool:CartPole-v1", f"{FILE}:five", "steps all its copies at once in C\\+\\+"),
        ("atari:Breakout", f"{FILE}:five", "steps all its copies at once in C\\+\\+"),
    ],
)
def test_what_cannot_be_is_refused_by_name(env: str, wrapper: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        rl.train("ppo", env=env, wrappers=[wrapper], out=str(tmp_path), **TINY)
    assert caught.value.field == "wrappers"
    assert not any(tmp_path.iterdir())
    with pytest.raises(ConfigError, match=why):
        rl.check_env(env, wrappers=[wrapper])


def test_the_command_line_takes_one_after_the_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env-wrapper", f"{FILE}:wide", f"--env-wrapper={FILE}:five", "--total-updates", "1", "--dry-run"]
    assert main(["train", "ppo", *flags]) == 0
    said = capsys.readouterr().out
    assert said.index(f'"{FILE}:wide"') < said.index(f'"{FILE}:five"')
    assert main(["check-env", "CartPole-v1", "--env-wrapper", f"{FILE}:five"]) == 0
    assert "nothing to complain about" in capsys.readouterr().out
    assert main(["train", "ppo", "--vector.backend", "gymnasium", "--env-wrapper", f"{FILE}:five"]) == 2
    assert "vector.backend = 'gymnasium': it steps all copies at once, and none of them in wrappers" in capsys.readouterr().err
