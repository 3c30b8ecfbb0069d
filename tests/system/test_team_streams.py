"""Agents whose steps go to two streams, each read by a learner of its own and in segments of its own length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import team_streams
import torch
from safetensors.torch import load_file
from test_team_runs import TEAM, content, params

import runnel as rl

RECIPE = str(Path(__file__).parent / "team_streams.py")
SETTINGS: dict[str, Any] = {k: v for k, v in TEAM.items() if k != "teams"}


def train(out: Path, **more: Any) -> rl.Run:
    return rl.train(RECIPE, out=str(out), **{**SETTINGS, **more})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("whole"))


def test_both_learners_get_every_step_and_both_accounts_add_up(whole: rl.Run) -> None:
    assert (whole.status, whole.version, whole.steps) == ("finished", 8, 8 * 4 * 10)
    streams = whole.rows("end")[-1]["streams"]
    assert {name: account["consumed"] for name, account in streams.items()} == {"sender": 32, "receiver": 32, "watched": 64}
    for account in streams.values():
        assert account["dispatched"] == account["consumed"] + sum(account["cancelled"].values()) + account["in_flight"]
    # an episode of three steps has two decisions of the sender: at the first and the last step
    decisions = 4 * sum(t % 3 != 1 for t in range(80))
    assert whole.rows()[-1]["metrics"]["watched/seen"] == decisions
    assert load_file(params(whole))["watched/counts"].sum() == decisions


def test_the_second_stream_changes_nothing_for_who_reads_the_first(whole: rl.Run, tmp_path: Path) -> None:
    ppo = {**TEAM["ppo"], "normalise_obs": False, "normalise_reward": False}
    plain = load_file(params(rl.train("ippo", out=str(tmp_path), **{**TEAM, "ppo": ppo})))
    found = load_file(params(whole))
    assert {k for k in found if k not in plain} == {"watched/counts"}
    assert all(torch.equal(x, found[k]) for k, x in plain.items())


@pytest.mark.parametrize("more", [{"launcher": "local"}, {"num_actors": 2, "num_env_groups": 2, "launcher": "local"}])
def test_every_launcher_gives_the_same(more: dict[str, Any], tmp_path: Path) -> None:
    settings = {k: v for k, v in more.items() if k != "launcher"}
    assert content(train(tmp_path / "local", **more)) == content(train(tmp_path / "inproc", **settings))


@pytest.mark.parametrize("version", [3, 5])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(version: int, whole: rl.Run, tmp_path: Path) -> None:
    stopped = rl.train(RECIPE, out=str(tmp_path), on_update=lambda row: row["version"] < version, **SETTINGS)
    assert content(rl.resume(stopped.path), evaluations=False) == content(whole, evaluations=False)


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(rl.ConfigError, match=r"teams = .*: this recipe says itself which policy serves an agent"):
        team_streams.build(team_streams.Config(teams=(".*=red",)))
    task = rl.graphs.TeamTask(rl.graphs.TeamConfig(teams=("sender=a", "receiver=b")))
    with pytest.raises(rl.ConfigError, match="no route writes a stream of this name; the streams are a, b"):
        rl.graphs.team_graph(task._config, task, network=_network, learner=_nobody, others={"c": lambda ranks: None})


def _network(policy: str, spec: rl.core.EnvSpec) -> rl.nets.ActorCritic:
    return rl.nets.ActorCritic(spec, rl.nets.build_body(spec, rl.NetConfig(hidden=(4,)), seed=1))


def _nobody(*_: Any) -> Any:
    raise AssertionError("no learner is made before the graph is checked")
