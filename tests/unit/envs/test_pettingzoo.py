"""Environments of PettingZoo by name: the same numbers as stepping them by hand, and names that lead nowhere."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

import runnel as rl
from runnel.core.routes import sides_of, team_routes
from runnel.envs.registry import make_env, make_team_env, with_wrappers
from runnel.envs.team.parallel import ParallelEnv
from runnel.envs.team.serial import SerialTeam
from runnel.envs.vector.cpu_base import episode_seed
from runnel.run.trust import code_in

SPREAD = "pettingzoo:mpe2.simple_spread_v3"


def test_simple_spread_in_a_vector_equals_stepping_it_by_hand() -> None:
    """Two environments, 60 steps: with 25 steps an episode that is two whole ones and a part, all under the vector's seeds."""
    sides = sides_of(team_routes((".*=shared",)), ParallelEnv(make_team_env(SPREAD), "spread").spec())
    vector, agents = SerialTeam(lambda: make_team_env(SPREAD), 2, sides=sides, seed=5), sides["shared"].agents
    vector.reset()
    from mpe2 import simple_spread_v3

    alone, rng, out = [simple_spread_v3.parallel_env() for _ in range(2)], np.random.default_rng(0), vector.outs["shared"]
    rows = [env.reset(seed=episode_seed(5, i, 0))[0] for i, env in enumerate(alone)]
    for t in range(60):
        expected = np.concatenate([[obs[agent] for agent in agents] for obs in rows]).astype(np.float32)
        assert np.array_equal(out.obs["obs"].numpy(), expected)
        assert out.active.all()  # type: ignore[union-attr]
        actions = rng.integers(0, 5, (2, 3))
        vector.send({"shared": torch.from_numpy(actions.reshape(-1))})
        told = [env.step(dict(zip(agents, row, strict=True))) for env, row in zip(alone, actions, strict=True)]
        rewards = np.concatenate([[step[1][agent] for agent in agents] for step in told]).astype(np.float32)
        assert np.array_equal(out.reward.numpy(), rewards)
        over = (t + 1) % 25 == 0
        assert out.truncated.tolist() == [over] * 6
        assert not out.terminated.any()
        rows = [step[0] for step in told]
        if over:
            last = np.concatenate([[obs[agent] for agent in agents] for obs in rows]).astype(np.float32)
            assert np.array_equal(out.final_obs["obs"][:6].numpy(), last)
            rows = [env.reset(seed=episode_seed(5, i, (t + 1) // 25))[0] for i, env in enumerate(alone)]
    assert [(e.env, e.length) for e in vector.episodes()] == [(0, 25), (1, 25)] * 2


def test_arguments_reach_the_environment() -> None:
    kwargs = {"N": 2, "continuous_actions": True}
    spec = ParallelEnv(make_team_env(SPREAD, kwargs=kwargs), "spread").spec()
    assert {agent: own.action.kind for agent, own in spec.agents.items()} == {"agent_0": "continuous", "agent_1": "continuous"}
    with pytest.raises(rl.RunnelError, match=r"making it raised TypeError: .* its arguments go into env_kwargs"):
        make_team_env(SPREAD, kwargs={"agents": 2})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mpe2.simple_spred_v3", "mpe2 has no environment 'simple_spred_v3'; did you mean simple_spread_v3"),
        ("mpe2.simple_spread_v2", "has no environment 'simple_spread_v2'; did you mean simple_spread_v3?"),
        ("classic.tictactoe", "pettingzoo.classic.tictactoe has neither parallel_env nor env, so it is no environment of"),
        ("classic.zzz", "has no environment 'zzz'; it has chess_v6, connect_four_v3"),
        ("mpe.simple_spread_v3", "these environments are in the package mpe2 now: pettingzoo:mpe2.simple_spread_v3"),
        ("clasic.tictactoe_v3", "did you mean 'classic'\\? write pettingzoo:FAMILY.NAME, for example"),
        ("os.path", "the families are mpe2, classic, butterfly, sisl, atari"),
        ("mpe2", "write pettingzoo:FAMILY.NAME, for example pettingzoo:mpe2.simple_spread_v3"),
    ],
)
def test_a_name_that_leads_nowhere_is_refused(name: str, text: str) -> None:
    with pytest.raises(rl.ConfigError, match=text):
        make_team_env(f"pettingzoo:{name}")


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chess", None)
    with pytest.raises(rl.ConfigError, match=r'cannot be imported .*; pip install "pettingzoo\[classic\]"'):
        make_team_env("pettingzoo:classic.chess_v6")
    monkeypatch.setitem(sys.modules, "mpe2", None)
    with pytest.raises(rl.ConfigError, match=r'needs the package mpe2: pip install "runnel\[teams\]"'):
        make_team_env(SPREAD)


def test_a_recipe_for_one_agent_says_which_one_takes_several() -> None:
    for target in (SPREAD, "runnel.envs.team.toy:Whisper"):
        with pytest.raises(
            rl.ConfigError, match=r"it has several agents: train it with a recipe for teams \(runnel train ippo\)"
        ):
            make_env(target)
    with pytest.raises(rl.ConfigError, match="it has several agents"):
        rl.train("ppo", env=SPREAD)
    with pytest.raises(rl.ConfigError, match="wrappers are of one agent, and it has several"):
        with_wrappers(SPREAD, ["wrappers_of_users:nothing"])


def test_such_a_name_is_no_code_of_a_stranger() -> None:
    assert not code_in("ippo", {"env": SPREAD})
