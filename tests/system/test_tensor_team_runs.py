"""Runs on tensor worlds of several agents: a run that was stopped goes on bit for bit, with a critic of the whole game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import runnel as rl

RUN: dict[str, Any] = {
    "seed": 3,
    "num_envs": 6,
    "num_steps": 8,
    "total_updates": 4,
    "net": {"hidden": (8,)},
    "ppo": {"num_epochs": 1, "lr": 1e-2},
    "track": (),
    "name": "run",
    "checkpoint": {"every": 1},
    "eval": {"episodes": 8},
}


def params(run: rl.Run) -> bytes:
    return (sorted((run.path / "checkpoints").glob("0*"))[-1] / "params.safetensors").read_bytes()


@pytest.mark.parametrize(("env", "teams"), [("tensor:Spread", ()), ("tensor:Leduc", ("player_0=first", "player_1=second"))])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(env: str, teams: tuple[str, ...], tmp_path: Path) -> None:
    settings = {**RUN, "env": env, "teams": teams}
    whole = rl.train("mappo", out=str(tmp_path / "whole"), **settings)
    assert (whole.status, whole.version, whole.steps) == ("finished", 4, 4 * 6 * 8)
    policy = "first" if teams else "shared"
    assert all(row["metrics"][f"{policy}/grad_norm"] > 0.0 for row in whole.rows())
    stopped = rl.train("mappo", out=str(tmp_path / "stopped"), on_update=lambda row: row["version"] < 2, **settings)
    assert (stopped.status, stopped.version) == ("stopped", 2)
    resumed = rl.resume(stopped.path)
    assert params(resumed) == params(whole)
    assert [row["metrics"] for row in resumed.rows()] == [row["metrics"] for row in whole.rows()]


def test_a_run_by_kernels_learns_as_the_plain_one_and_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Two policies, one of which waits while the other decides. Measured: losses and entropies differ by 1e-6 at most."""
    pytest.importorskip("numba")
    teams = {"env": "tensor:Leduc", "teams": ("player_0=first", "player_1=second"), "net": {"hidden": (16, 16)}}
    settings = {**RUN, **teams, "num_envs": 80, "eval": {"episodes": 0}}
    plain, whole = (
        rl.train("ippo", out=str(tmp_path / mode), compiled=mode, progress=False, **settings) for mode in ("off", "on")
    )
    (text,) = (row["text"] for row in whole.rows("event") if "compiled:" in row["text"])
    assert text == "trainer: compiled: numba, PPO of two layers; off with --compiled off"
    for ours, theirs in zip(whole.rows(), plain.rows(), strict=True):
        for name in ("loss/policy", "loss/value", "entropy"):
            for policy in ("first", "second"):
                key = f"{policy}/{name}"
                assert ours["metrics"][key] == pytest.approx(theirs["metrics"][key], abs=1e-4), key
    stop = {"on_update": lambda row: row["version"] < 2, "compiled": "on", "progress": False}
    resumed = rl.resume(rl.train("ippo", out=str(tmp_path / "stopped"), **stop, **settings).path, progress=False)
    assert params(resumed) == params(whole)
    with pytest.raises(rl.ConfigError, match="MAPPOLearner is a variant"):
        rl.train("mappo", out=str(tmp_path / "never"), compiled="on", progress=False, **settings)


def test_a_loaded_policy_plays_a_world_in_python(tmp_path: Path) -> None:
    run = rl.train("ippo", out=str(tmp_path), **{**RUN, "total_updates": 1, "env": "tensor:TicTacToe"})
    policy, env = rl.load(run.path), rl.envs.make_team_env("tensor:TicTacToe")
    obs, infos = env.reset(seed=1)
    moves, played = 0, set()
    while env.agents:
        (mover,) = env.agents
        masks = {mover: infos[mover]["action_mask"]}
        action = int(np.asarray(policy.act({mover: obs[mover]}, action_mask=masks)[mover]))
        assert masks[mover][action]
        played.add(action)
        obs, rewards, _, _, infos = env.step({mover: action})
        moves += 1
    assert 5 <= moves == len(played)
    assert sum(rewards.values()) == 0.0


def test_what_is_not_for_tensor_worlds_is_refused() -> None:
    for setting in ({"vector": {"backend": "processes"}}, {"vector": {"on_error": "restart"}}):
        with pytest.raises(rl.ConfigError, match="a tensor environment steps all its worlds at once"):
            rl.train("ippo", **{**RUN, "env": "tensor:Spread", **setting})
    with pytest.raises(rl.ConfigError, match="it has several agents"):
        rl.train("ppo", env="tensor:Spread")
