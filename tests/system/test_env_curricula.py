"""Runs whose environments are told what to play: they resume bit for bit, on every launcher; what cannot work is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_slices import content

import runnel as rl
from runnel.core.state import State
from runnel.run.checkpoint import Checkpoints, read_part

ENVS = Path(__file__).parents[1] / "unit" / "envs"
TASKED = f"{ENVS / 'tasked_env.py'}:Tasked"
SMALL: dict[str, Any] = {
    "total_updates": 12,
    "num_envs": 4,
    "num_steps": 8,
    "ppo": {"num_epochs": 1, "num_minibatches": 2},
    "checkpoint": {"every": 3},
    "eval": {"episodes": 0},
    "track": (),
}
PLR = {"kind": "plr", "capacity": 12, "replay": 0.8}
ALP = {"kind": "alp_gmm", "fit_every": 30, "max_gaussians": 3}
NO_EVAL: dict[str, Any] = {"eval": {"episodes": 0}, "dqn": {"batch_size": 8}}
GPU_LIKE = {"env": "tensor:Ladder", "env_kwargs": {"firm": 0.7}}


def train(tmp_path: Path, name: str, **settings: Any) -> rl.Run:
    return rl.train("ppo", out=str(tmp_path), name=name, **{**SMALL, "env": TASKED, **settings})


def history_of(run: rl.Run) -> State:
    newest = Checkpoints(Path(run.path) / "checkpoints").newest_whole()
    assert newest is not None
    return read_part(newest, "worker-trainer")["curriculum"]


@pytest.mark.parametrize(
    "settings",
    [
        {"curriculum": PLR},
        {"curriculum": ALP, "vector": {"backend": "processes", "num_workers": 2}},
        {"curriculum": PLR, "staleness": {"mode": "one_step"}, "num_env_groups": 2, "net": {"core": "gru"}, "num_envs": 8},
        {"curriculum": ALP, **GPU_LIKE},
        {"curriculum": PLR, **GPU_LIKE, "ppo": {"num_epochs": 1, "num_minibatches": 2, "normalise_reward": False}},
        {"curriculum": {"kind": "uniform"}},
    ],
    ids=["plr", "alp, processes", "plr, one step, groups, recurrent", "alp, tensors", "plr, tensors", "uniform"],
)
def test_a_stopped_run_goes_on_as_if_it_had_not(settings: dict[str, Any], tmp_path: Path) -> None:
    whole = train(tmp_path, "whole", **settings)
    part = train(tmp_path, "part", on_update=lambda row: row["version"] < 7, **settings)
    rl.resume(part.path)
    assert content(Path(part.path)) == content(Path(whole.path))


def test_one_history_on_every_launcher(tmp_path: Path) -> None:
    here = train(tmp_path, "here", curriculum=PLR, num_actors=2)
    there = train(tmp_path, "there", curriculum=PLR, num_actors=2, launcher="local")
    ours, theirs = history_of(here), history_of(there)
    assert ours["ids"] == theirs["ids"]
    assert all(np.array_equal(np.asarray(ours[name]), np.asarray(theirs[name])) for name in ("params", "scores", "last"))
    levels = here.rows("update")[-1]["metrics"]["tasks/levels"]
    assert levels == len(ours["ids"]) == 12


def test_evaluations_are_not_of_the_curriculum(tmp_path: Path) -> None:
    """An environment that is evaluated chooses its own tasks: with and without a curriculum the same ones."""
    seen = []
    for kind in ("off", "uniform"):
        run = train(tmp_path, kind, curriculum={"kind": kind}, total_updates=1, eval={"episodes": 6})
        seen.append(run.rows("eval")[-1]["returns"])
    assert seen[0] == seen[1], "its rewards do not depend on actions"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"env": "CartPole-v1", "curriculum": PLR}, r"curriculum\.kind = 'plr'.*declares no task_space"),
        ({"curriculum": {"kind": "uniform", "replay": 0.9}}, r"curriculum\.replay = 0\.9: is of curriculum\.kind plr"),
        ({"curriculum": PLR, "placement": {"trainers": 2}, "launcher": "local"}, r"placement\.trainers"),
        ({"curriculum": {"kind": "uniform"}, "vector": {"backend": "gymnasium"}}, r"vector\.backend = 'gymnasium': only env"),
        ({"curriculum": PLR, "population": 2, "num_actors": 1}, r"curriculum\.kind"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match=why):
        train(tmp_path, "bad", **settings)
    assert not list(tmp_path.iterdir())


def test_replay_recipes_have_no_curriculum_that_must_see_episodes(tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match=r"curriculum\.kind = 'alp_gmm'.*an on-policy recipe"):
        rl.train("dqn", env=TASKED, out=str(tmp_path), curriculum={"kind": "alp_gmm"})
    run = rl.train(
        "dqn", env=TASKED, out=str(tmp_path), curriculum={"kind": "uniform"}, total_steps=64, min_fill=32, track=(), **NO_EVAL
    )
    assert run.steps == 64
