"""Runs on environments of PettingZoo, OpenSpiel, level-based foraging and VMAS: a run that was stopped goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runnel as rl
from runnel.envs.registry import make_team_env

RUN: dict[str, Any] = {
    "seed": 3,
    "num_envs": 4,
    "num_steps": 10,
    "total_updates": 4,
    "net": {"hidden": (8,)},
    "ppo": {"num_minibatches": 2, "num_epochs": 1, "lr": 1e-2},
    "track": (),
    "name": "run",
    "checkpoint": {"every": 1},
    "eval": {"episodes": 0},
}


def params(run: rl.Run) -> bytes:
    return (sorted((run.path / "checkpoints").glob("0*"))[-1] / "params.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("recipe", "name", "kwargs"),
    [
        ("ippo", "pettingzoo:mpe2.simple_spread_v3", {}),
        ("ippo", "pettingzoo:classic.tictactoe_v3", {}),
        ("mappo", "openspiel:leduc_poker", {}),
        ("ippo", "lbforaging:Foraging-5x5-2p-1f-v3", {"common_reward": True}),
        ("mappo", "vmas:simple_spread", {"max_steps": 7, "continuous_actions": False}),
    ],
)
def test_a_run_that_was_stopped_goes_on_bit_for_bit(recipe: str, name: str, kwargs: dict[str, Any], tmp_path: Path) -> None:
    settings = {**RUN, "env": name, "env_kwargs": kwargs}
    whole = rl.train(recipe, out=str(tmp_path / "whole"), **settings)
    assert (whole.status, whole.version, whole.steps) == ("finished", 4, 4 * 4 * 10)
    assert all(row["metrics"]["shared/grad_norm"] > 0.0 for row in whole.rows())
    stopped = rl.train(recipe, out=str(tmp_path / "stopped"), on_update=lambda row: row["version"] < 2, **settings)
    assert (stopped.status, stopped.version) == ("stopped", 2)
    resumed = rl.resume(stopped.path)
    assert params(resumed) == params(whole)
    assert [row["metrics"] for row in resumed.rows()] == [row["metrics"] for row in whole.rows()]


def test_a_loaded_policy_plays_legal_moves_in_turns(tmp_path: Path) -> None:
    run = rl.train("ippo", out=str(tmp_path), **{**RUN, "total_updates": 1, "env": "pettingzoo:classic.tictactoe_v3"})
    policy, env = rl.load(run.path), make_team_env("pettingzoo:classic.tictactoe_v3")
    env.reset(seed=1)
    for agent in env.agent_iter():
        obs, _, terminated, truncated, _ = env.last()
        action = None if terminated or truncated else int(policy.act({agent: obs})[agent])
        assert action is None or np.asarray(obs["action_mask"])[action]
        env.step(action)
