"""Runs of several policies in one environment: every launcher gives the same, a resume goes on, and bad input is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import runnel as rl
from runnel.envs.team.toy import Whisper

TEAM: dict[str, Any] = {
    "teams": ("sender=sender", "receiver=receiver"),
    "seed": 3,
    "num_envs": 4,
    "num_steps": 10,
    "total_updates": 8,
    "net": {"hidden": (8,)},
    "ppo": {"num_minibatches": 2, "num_epochs": 2, "lr": 1e-2},
    "track": (),
    "name": "run",
    "checkpoint": {"every": 3},
    "eval": {"every": 4, "episodes": 5},
    "deterministic": True,
}


def train(out: Path, **more: Any) -> rl.Run:
    return rl.train("ippo", out=str(out), **{**TEAM, **more})


def params(run: rl.Run) -> Path:
    return sorted((run.path / "checkpoints").glob("0*"))[-1] / "params.safetensors"


def content(run: rl.Run, *, evaluations: bool = True) -> tuple[list[Any], bytes]:
    """What updates and evaluations say of learning, and the bytes of the last parameters. A run that stops is evaluated once
    more."""
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    said = [
        {k: v for k, v in r.get("metrics", {}).items() if k.startswith(("sender/", "receiver/"))}
        for r in rows
        if r["kind"] == "update"
    ]
    said += [r["returns"] for r in rows if r["kind"] == "eval" and evaluations]
    return said, params(run).read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    ("more", "per_step"),
    [
        ({"env": "runnel.envs.team.toy:Secret", "teams": ()}, 2.0),
        ({"env": "team_turns:Leaver", "teams": ("each",)}, 1.4),
        ({"net": {"core": "gru", "core_size": 4}, "teams": ("sender=a: 5 steps, burn-in 2", "receiver=b")}, 1.0),
    ],
)
def test_decisions_of_agents_are_counted_beside_steps_of_environments(
    more: dict[str, Any], per_step: float, tmp_path: Path
) -> None:
    """Two agents always decide; one of two leaves after two steps of five; one of two decides at a time, in segments of two
    lengths."""
    run = train(tmp_path, **{**more, "ppo": {"num_minibatches": 1}, "total_updates": 2, "eval": {"episodes": 0}})
    assert [row["metrics"]["agent_steps"] for row in run.rows()] == pytest.approx(
        [row["steps"] * per_step for row in run.rows()]
    )


def test_a_run_moves_all_policies_and_its_accounts_add_up(whole: rl.Run) -> None:
    assert (whole.status, whole.version, whole.steps) == ("finished", 8, 8 * 4 * 10)
    row = whole.rows()[-1]
    assert {
        "sender/loss/policy",
        "receiver/loss/policy",
        "sender/entropy",
        "return",
        "return/sender",
        "return/receiver",
    } <= row["metrics"].keys()
    assert all(r["metrics"]["sender/grad_norm"] > 0.0 < r["metrics"]["receiver/grad_norm"] for r in whole.rows())
    streams = whole.rows("end")[-1]["streams"]
    assert set(streams) == {"sender", "receiver"}
    for account in streams.values():
        gone = sum(account["cancelled"].values()) + sum(account["dropped"].values())
        assert account["dispatched"] == account["consumed"] + gone + account["in_flight"]
        assert account["consumed"] == 8 * 4


def test_an_evaluation_tells_the_return_of_each_policy(whole: rl.Run) -> None:
    assert whole.eval is not None
    extra = whole.eval["extra"]
    assert whole.eval["num"] == 5
    assert whole.eval["mean"] == pytest.approx((extra["return/sender"] + extra["return/receiver"]) / 2)


@pytest.mark.parametrize(
    "more",
    [
        {"launcher": "local"},
        {"launcher": "local", "placement": {"policy_workers": 1}},
        {"placement": {"policy_workers": 1}},
        {"vector": {"backend": "processes", "num_workers": 2}},
    ],
    ids=["local", "local, policy workers", "policy workers", "environments in processes"],
)
def test_every_launcher_gives_the_same(whole: rl.Run, more: dict[str, Any], tmp_path: Path) -> None:
    assert content(train(tmp_path, **more)) == content(whole)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(version: int, whole: rl.Run, tmp_path: Path) -> None:
    """An episode has three steps and a segment ten: one of these stops is where the receiver has left, one where the sender
    waits."""
    stopped = rl.train("ippo", out=str(tmp_path), on_update=lambda row: row["version"] < version, **TEAM)
    assert (stopped.status, stopped.version) == ("stopped", version)
    assert content(rl.resume(stopped.path), evaluations=False) == content(whole, evaluations=False)


RECURRENT = {
    "teams": ("sender=sender: 5 steps, burn-in 3", "receiver=receiver"),
    "net": {"hidden": (8,), "core": "gru", "core_size": 4},
    "env_kwargs": {"shown_again": False},
}


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("recurrent"), **RECURRENT)


def test_routes_have_segments_of_their_own_length(recurrent: rl.Run) -> None:
    """Twice as many segments on the stream of half the length; a step still counts once."""
    assert (recurrent.status, recurrent.version, recurrent.steps) == ("finished", 8, 8 * 4 * 10)
    streams = recurrent.rows("end")[-1]["streams"]
    assert {name: account["consumed"] for name, account in streams.items()} == {"sender": 8 * 4 * 2, "receiver": 8 * 4}
    for account in streams.values():
        assert account["dispatched"] == account["consumed"] + sum(account["cancelled"].values()) + account["in_flight"]


@pytest.mark.parametrize(
    "more",
    [
        {"launcher": "local"},
        {"launcher": "local", "placement": {"policy_workers": 1}},
    ],
    ids=["local", "local, policy workers"],
)
def test_every_launcher_gives_the_same_of_a_recurrent_team(recurrent: rl.Run, more: dict[str, Any], tmp_path: Path) -> None:
    assert content(train(tmp_path, **RECURRENT, **more)) == content(recurrent)


@pytest.mark.parametrize("version", [3, 5])
def test_a_recurrent_team_that_was_stopped_goes_on_bit_for_bit(version: int, recurrent: rl.Run, tmp_path: Path) -> None:
    settings = {**TEAM, **RECURRENT}
    stopped = rl.train("ippo", out=str(tmp_path), on_update=lambda row: row["version"] < version, **settings)
    assert (stopped.status, stopped.version) == ("stopped", version)
    assert content(rl.resume(stopped.path), evaluations=False) == content(recurrent, evaluations=False)


def test_a_loaded_recurrent_team_remembers_while_an_agent_waits(recurrent: rl.Run) -> None:
    """It acts as the evaluation does: the sender's answer at the end depends on what it saw at the beginning."""
    policy = rl.load(recurrent.path)
    assert isinstance(policy, rl.nets.team.TeamPolicy)
    first, end = np.array([0, 1, 0, 0], np.float32), np.array([0, 0, 0, 1], np.float32)
    policy.act({"sender": first})
    policy.act({"receiver": np.array([1, 0, 0], np.float32)})
    kept = policy.policies["sender"]._state["state/h"].clone()
    assert kept.any()
    policy.act({"sender": end})
    assert not np.array_equal(policy.policies["sender"]._state["state/h"], kept)
    policy.reset()
    assert not policy.policies["sender"]._state


FRAGILE: dict[str, Any] = {"env": "team_turns:Fragile", "teams": (), "vector": {"on_error": "restart"}}


def test_environments_that_break_are_made_anew_and_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    with pytest.raises(rl.core.DataError, match="raised RuntimeError: the game is over"):
        train(tmp_path / "stops", **{**FRAGILE, "vector": {}})
    whole = train(tmp_path / "whole", **FRAGILE)
    apart = {"vector": {"on_error": "restart", "backend": "processes", "num_workers": 2}}
    assert params(train(tmp_path / "apart", **{**FRAGILE, **apart})).read_bytes() == params(whole).read_bytes()
    assert (whole.status, whole.steps) == ("finished", 8 * 4 * 10)
    faults = [row for row in whole.rows("event") if "the game is over" in row["text"]]
    assert faults
    stopped = rl.train("ippo", out=str(tmp_path / "b"), on_update=lambda row: row["version"] < 4, **{**TEAM, **FRAGILE})
    resumed = rl.resume(stopped.path)
    assert params(resumed).read_bytes() == params(whole).read_bytes()
    assert [r["metrics"] for r in resumed.rows()] == [r["metrics"] for r in whole.rows()]


def test_two_ranks_train_on_the_same_rows_as_one(tmp_path: Path) -> None:
    """One minibatch: then shuffles do not matter, and both give the same step."""
    ppo = {"num_minibatches": 1, "num_epochs": 1, "lr": 1e-2}
    settings = {"launcher": "local", "ppo": ppo, "total_updates": 4, "num_actors": 1, "eval": {"episodes": 0}}
    found = []
    for trainers in (1, 2):
        run = train(tmp_path / str(trainers), placement={"trainers": trainers}, **settings)
        found.append(load_file(params(run)))
    assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_ranks_never_part_the_agents_of_an_environment(tmp_path: Path) -> None:
    """Six rows of one policy are three environments of two agents: three ranks may share them, and two may not."""
    settings = {"env": "team_turns:Turns", "teams": (), "num_envs": 3, "launcher": "local", "total_updates": 1}
    assert train(tmp_path / "3", placement={"trainers": 3}, eval={"episodes": 0}, **settings).status == "finished"
    with pytest.raises(rl.ConfigError, match="a batch is 1 segments of 3 units on stream 'shared', which 2 ranks cannot share"):
        train(tmp_path / "2", placement={"trainers": 2}, **settings)


def test_a_loaded_policy_acts_for_a_dict_of_agents(whole: rl.Run) -> None:
    policy, env = rl.load(whole.path), Whisper()
    obs, _ = env.reset(seed=1)
    for _ in range(3):
        actions = policy.act({agent: obs[agent] for agent in env.agents})
        assert set(actions) == set(env.agents)
        obs, *_ = env.step(actions)
    with pytest.raises(rl.core.DataError, match="knows no agent 'judge'; it was trained with sender, receiver"):
        policy.act({"judge": np.zeros(3)})


def test_a_loaded_policy_acts_for_one_agent_as_it_does_in_a_dict(recurrent: rl.Run) -> None:
    """Of a team with a memory, so that it shows whose memory is used; masks and draws go through the same call."""
    both, one, alone = (rl.load(recurrent.path) for _ in range(3))
    assert isinstance(both, rl.nets.TeamPolicy)
    assert isinstance(one, rl.nets.TeamPolicy)
    assert isinstance(alone, rl.nets.TeamPolicy)
    assert both.agents == ("sender", "receiver")
    rng = np.random.default_rng(0)
    for _ in range(4):
        obs = {"sender": rng.random(4, np.float32), "receiver": rng.random(3, np.float32)}
        actions = both.act(obs, deterministic=False)
        assert actions == {agent: one.act(seen, agent=agent, deterministic=False) for agent, seen in obs.items()}
        assert actions == {agent: alone[agent].act(seen, deterministic=False) for agent, seen in obs.items()}
    one["sender"].reset()
    assert not one["sender"]._state
    assert one["receiver"]._state
    with pytest.raises(rl.core.DataError, match="knows no agent 'judge'; it was trained with sender, receiver"):
        one.act(np.zeros(3), agent="judge")
    with pytest.raises(rl.core.DataError, match=r"give a dict of observations by agent .* policy.act\(obs, agent='sender'\)"):
        one.act(np.zeros(4))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"teams": ()}, "agents 'sender' and 'receiver' differ in their spaces; give each kind of agent a policy"),
        ({"teams": ("sender=a",)}, r"teams = \['sender=a'\]: no pattern matches agent 'receiver'; add receiver=POLICY"),
        (
            {"teams": ("sender=a", "receiver=b", "judge=c")},
            "teams = 'judge=c': it matches no agent; the agents are sender, receiver",
        ),
        ({"env": "CartPole-v1"}, "it has one agent: train it with ppo.*environments of several agents have no ids"),
        ({"env": "runnel.envs.toy:PointMass"}, "has no possible_agents; it must have PettingZoo's parallel API"),
        ({"teams": ("sender=a: 5 steps, burn-in 2", "receiver=b")}, "burn-in brings a recurrent state up to date, and this"),
        ({"teams": ("sender=a: 4 steps", "receiver=b")}, r"segments of 4 steps do not fit into 10 \(num_steps\)"),
        ({"net": {"core_size": 4}}, "is of a recurrent core; set net.core"),
        ({"net": {"core": "gru"}, "ppo": {"num_minibatches": 8}}, "must divide the batch of 4; use 4"),
        ({"vector": {"backend": "gymnasium"}}, "vector.backend = 'gymnasium': teams have serial"),
        ({"vector": {"num_workers": 2}}, "is of processes, which auto does not choose for teams"),
        ({"vector": {"frame_stack": 2}}, "no frames of teams are stacked"),
        ({"record": {"videos": 1}}, "only tensor worlds that draw themselves are recorded"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(more: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(rl.RunnelError, match=text):
        train(tmp_path, **more)
    assert not list(tmp_path.iterdir())
