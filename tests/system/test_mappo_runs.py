"""Runs with a central critic: every launcher gives the same, a resume goes on, and policies do without the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from test_team_runs import FRAGILE, TEAM, content, params
from torch.testing import assert_close

import runnel as rl


def train(out: Path, **more: Any) -> rl.Run:
    return rl.train("mappo", out=str(out), **{**TEAM, **more})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "more",
    [
        {"launcher": "local", "placement": {"policy_workers": 1}},
        {"vector": {"backend": "processes", "num_workers": 2}},
    ],
    ids=["local, policy workers", "environments in processes"],
)
def test_every_launcher_gives_the_same(whole: rl.Run, more: dict[str, Any], tmp_path: Path) -> None:
    assert content(train(tmp_path, **more)) == content(whole)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(version: int, whole: rl.Run, tmp_path: Path) -> None:
    stopped = rl.train("mappo", out=str(tmp_path), on_update=lambda row: row["version"] < version, **TEAM)
    assert (stopped.status, stopped.version) == ("stopped", version)
    assert content(rl.resume(stopped.path), evaluations=False) == content(whole, evaluations=False)


def test_a_loaded_team_acts_by_what_its_agents_see(whole: rl.Run) -> None:
    policy = rl.load(whole.path)
    assert set(policy.act({"sender": np.array([0, 1, 0, 0], np.float32)})) == {"sender"}  # type: ignore[arg-type]
    assert len(rl.evaluate(whole.path, episodes=2).returns) == 2


def test_two_ranks_train_on_the_same_rows_as_one(tmp_path: Path) -> None:
    ppo = {"num_minibatches": 1, "num_epochs": 2, "lr": 1e-2}
    settings = {"launcher": "local", "ppo": ppo, "total_updates": 4, "num_actors": 1, "eval": {"episodes": 0}}
    found = []
    for trainers in (1, 2):
        run = train(tmp_path / str(trainers), placement={"trainers": trainers}, **settings)
        found.append(load_file(params(run)))
    assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_a_critic_without_agents_of_its_own_and_an_opponent_from_a_run(whole: rl.Run, tmp_path: Path) -> None:
    plain = {"ppo": {**TEAM["ppo"], "agent_state": False}, "eval": {"episodes": 0}, "total_updates": 2}
    assert train(tmp_path / "plain", **plain).status == "finished"
    teams = ("sender=sender", f"receiver=run:{whole.path}@newest#receiver")
    assert train(tmp_path / "against", teams=teams, total_updates=2).status == "finished"


def test_environments_that_break_in_processes_are_cut_as_in_the_actor(tmp_path: Path) -> None:
    here = train(tmp_path / "here", **FRAGILE)
    assert [row for row in here.rows("event") if "the game is over" in row["text"]]
    apart = {"vector": {"on_error": "restart", "backend": "processes", "num_workers": 2}}
    assert params(train(tmp_path / "apart", **{**FRAGILE, **apart})).read_bytes() == params(here).read_bytes()


def test_a_memory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rl.ConfigError, match=r"net\.core.*share nothing; a memory is in recipe ippo"):
        train(tmp_path, net={"core": "gru"})


def test_a_run_that_starts_from_another_gets_the_scale_of_its_critic(whole: rl.Run, tmp_path: Path) -> None:
    """Its first values are on the scale of returns, and not on that of a critic which has seen none."""
    other = train(tmp_path, init_from=str(whole.path), total_updates=1, eval={"episodes": 0}, ppo={**TEAM["ppo"], "lr": 0.0})
    before, after = load_file(params(whole)), load_file(params(other))
    for policy in ("sender", "receiver"):
        name = f"{policy}/body.value_norm.w"
        assert 0.0 < before[name] < after[name]
        assert after[f"{policy}/body.critic.weight.0"].equal(before[f"{policy}/body.critic.weight.0"])
