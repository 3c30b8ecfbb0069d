"""Whole runs with costs: what they report, that weights are the reward they say, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from field_tasks import Costly

import runnel as rl
from runnel.core.errors import ConfigError, NonFiniteError, WorkerFailure
from runnel.report.write import write_report

QUIET: dict[str, Any] = {"track": (), "checkpoint.every": 0, "eval.episodes": 0, "vector.backend": "serial"}
SMALL: dict[str, Any] = {**QUIET, "num_envs": 2, "num_steps": 16, "net.hidden": (8,)}
REPLAY: dict[str, Any] = {**SMALL, "min_fill": 64, "total_steps": 192, "update_ratio": 0.25}


class Joined(Costly):
    """`Costly`, whose reward has its cost in it."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward - 0.5 * info["cost"], terminated, truncated, {}


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("ppo", {**SMALL, "total_updates": 5}),
        ("a2c", {**SMALL, "total_updates": 5}),
        ("dqn", {**REPLAY, "dqn.batch_size": 16, "replay.n_step": 3}),
        ("dqn", {**REPLAY, "dqn.batch_size": 16, "net.core": "gru"}),
        ("sac", {**REPLAY, "sac.batch_size": 16, "env_kwargs": {"box": True}}),
        ("td3", {**REPLAY, "td3.batch_size": 16, "env_kwargs": {"box": True}}),
    ],
)
def test_a_weighted_reward_is_the_reward_of_an_environment_that_gives_it(
    recipe: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The same learner on two environments: one gives reward and cost apart, the other their weighted sum."""
    weighted = {"channels.costs": ("cost",), "channels.weights": {"costs/cost": -0.5}}
    ours = rl.train(recipe, env=Costly, out=str(tmp_path / "ours"), **settings, **weighted)
    joined = rl.train(recipe, env=Joined, out=str(tmp_path / "joined"), **settings)
    plain = rl.train(recipe, env=Costly, out=str(tmp_path / "plain"), **settings)
    for key in ("loss/value", "loss/critic", "loss/td"):
        found = [[row["metrics"][key] for row in run.rows() if key in row["metrics"]] for run in (ours, joined, plain)]
        if found[0]:
            np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-6)
            assert not np.allclose(found[0], found[2], rtol=1e-2), "the weight changes something"
            return
    raise AssertionError(f"no loss of a critic among {sorted(ours.rows()[-1]['metrics'])}")


def test_rows_and_evaluations_tell_what_episodes_cost(tmp_path: Path) -> None:
    settings = {**SMALL, "total_updates": 8, "eval.episodes": 5, "channels.costs": ("cost",), "channels.rewards": ("forward",)}
    run = rl.train("ppo", env=Costly, out=str(tmp_path), **settings)
    last = run.rows()[-1]["metrics"]
    # an action earns or costs 1, so the two sum up to the length of an episode
    assert last["cost/cost"] + last["return"] == pytest.approx(last["episode_length"])
    assert "return/forward" in last
    assert run.eval is not None
    assert run.eval["extra"]["cost/cost"] + run.eval["mean"] == pytest.approx(run.eval["extra"]["length"])


def test_an_evaluation_has_a_table_of_sums(tmp_path: Path) -> None:
    settings = {**SMALL, "total_updates": 1, "eval.episodes": 6, "channels.costs": ("cost",), "checkpoint.every": 1}
    run = rl.train("ppo", env=Costly, out=str(tmp_path), **settings)
    assert run.eval is not None
    table = run.eval["tables"]["Sums of an episode"]
    assert (table["rows"], table["columns"]) == (["cost/cost"], ["mean", "low", "high", "most"])
    ((mean, low, high, most),) = table["values"]
    assert mean == run.eval["extra"]["cost/cost"]
    assert low <= mean <= high <= most
    assert "Sums of an episode" in write_report([run.path]).read_text()


def test_a_cut_evaluation_counts_costs_up_to_the_cut(tmp_path: Path) -> None:
    settings = {**SMALL, "total_updates": 1, "eval.episodes": 40, "eval.max_steps": 2, "channels.costs": ("cost",)}
    run = rl.train("ppo", env=Costly, out=str(tmp_path), **settings)
    assert run.eval is not None
    assert run.eval["extra"]["length"] <= 2
    assert run.eval["extra"]["cut"] > 0
    assert run.eval["extra"]["cost/cost"] + run.eval["mean"] == pytest.approx(run.eval["extra"]["length"])


class NoNumber(Costly):
    """Its cost is NaN some time."""

    def step(self, action: Any) -> Any:
        *rest, _ = super().step(action)
        return (*rest, {"cost": float("nan") if self.np_random.random() < 0.1 else 0.0})


def test_a_cost_that_is_nan_stops_the_run_and_is_named(tmp_path: Path) -> None:
    with pytest.raises((NonFiniteError, WorkerFailure), match="costs/cost"):
        rl.train("ppo", env=NoNumber, out=str(tmp_path), **SMALL, total_updates=9, **{"channels.costs": ("cost",)})


@pytest.mark.parametrize(
    ("recipe", "settings", "field", "text"),
    [
        ("ppo", {"channels.costs": ("cost",)}, "channels.costs", "'CartPole-v1' gave no cost 'cost' in a step"),
        ("ppo", {"channels.rewards": ("forward",)}, "channels.rewards", "gave no reward 'forward'"),
        ("sac", {"channels.weights": {"costs/cost": -1.0}}, "channels.weights", "--channels.costs cost reads it from info"),
        ("ppo_lagrangian", {"lagrangian.limits": {"cost": 25}}, "lagrangian.limits", "no cost 'cost' but no costs at all"),
        ("ppo", {"env": "tensor:GoalBeyondHazard", "channels.costs": ("hazard",)}, "channels.costs", "declares its own"),
        ("ppo", {"channels.costs": ("a", "a")}, "channels.costs", "one name of its own"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    recipe: str, settings: dict[str, Any], field: str, text: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        rl.train(recipe, **{"env": "CartPole-v1", "out": str(tmp_path), **settings})
    assert caught.value.field == field
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("launcher", ["inproc", "local"])
def test_parts_of_a_reward_of_gymnasium_are_channels(launcher: str, tmp_path: Path) -> None:
    """Any number that an environment reports can be one: MuJoCo's parts of the reward sum up to it."""
    pytest.importorskip("mujoco")
    parts = ("reward_dist", "reward_ctrl")
    settings = {"total_updates": 4, "num_envs": 2, "num_steps": 64, "channels.rewards": parts, "launcher": launcher}
    run = rl.train("ppo", env="Reacher-v5", out=str(tmp_path), **{**QUIET, "net.hidden": (8,)}, **settings)
    last = run.rows()[-1]["metrics"]
    assert sum(last[f"return/{part}"] for part in parts) == pytest.approx(last["return"], rel=1e-4)
