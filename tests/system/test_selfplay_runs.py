"""Runs of self-play: every launcher gives the same, a run that was stopped goes on with its pool, and no opponent changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runnel as rl
from runnel.agents.outcomes import Outcomes
from runnel.envs.team.toy import Bids
from runnel.run.checkpoint import Checkpoints, read_parts
from runnel.track.folder import RunFolder

GAME: dict[str, Any] = {
    "seed": 3,
    "num_envs": 4,
    "num_steps": 10,
    "total_updates": 12,
    "net": {"hidden": (8,)},
    "ppo": {"num_minibatches": 2, "num_epochs": 2, "lr": 1e-2, "normalise_obs": True},
    "pool": {"size": 3, "every": 2, "window": 20},
    "track": (),
    "name": "run",
    "checkpoint": {"every": 4},
    "eval": {"every": 6, "episodes": 4},
    "deterministic": True,
}


def train(out: Path, **more: Any) -> rl.Run:
    return rl.train("selfplay", out=str(out), **{**GAME, **more})


def league(run: rl.Run) -> list[Any]:
    return [json.loads(line) for line in (run.path / "league.jsonl").read_text().splitlines()]


def params(run: rl.Run) -> bytes:
    return (sorted((run.path / "checkpoints").glob("0*"))[-1] / "params.safetensors").read_bytes()


def content(run: rl.Run) -> tuple[Any, ...]:
    """What updates say, the league's file, and the bytes of the last parameters, the pool's among them."""
    said = [{k: v for k, v in row["metrics"].items() if k.startswith(("main/", "league/"))} for row in run.rows()]
    return said, league(run), params(run)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    return train(tmp_path_factory.mktemp("whole"))


def test_a_run_keeps_a_pool_and_says_who_plays_whom(whole: rl.Run) -> None:
    assert (whole.status, whole.version, whole.steps) == ("finished", 12, 12 * 4 * 10)
    rows = league(whole)
    last = rows[-1]
    names = [m["name"] for m in last["members"]]
    assert names[:2] == ["main", "main@0"]
    assert len(names) == 1 + 3
    assert sum(last["picked"].values()) == pytest.approx(1.0)
    assert last["picked"]["main"] == 0.5
    assert last["elo"]["main@0"] == 1000.0
    for counts in last["games"]["main"].values():
        assert counts[3] == sum(counts[:3])
    seats = last["by_seat"]["main"]["main@0"]
    assert [sum(column) for column in zip(*seats, strict=True)] == last["games"]["main"]["main@0"][:3]
    checksums = {m["name"]: m["checksum"] for row in rows for m in row["members"] if not m["live"]}
    for row in rows:
        assert all(m["checksum"] == checksums[m["name"]] for m in row["members"] if not m["live"])
    assert len(set(checksums.values())) == len(checksums) > 4


@pytest.mark.parametrize(
    "more",
    [{"launcher": "local"}, {"launcher": "local", "placement": {"policy_workers": 1}}, {"placement": {"policy_workers": 1}}],
    ids=["local", "local, policy workers", "policy workers"],
)
def test_every_launcher_gives_the_same(whole: rl.Run, more: dict[str, Any], tmp_path: Path) -> None:
    assert content(train(tmp_path, **more)) == content(whole)


@pytest.mark.parametrize("version", [3, 5, 8])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(version: int, whole: rl.Run, tmp_path: Path) -> None:
    """Members join at versions 2, 4, ...; at each of these stops episodes against frozen members are open, and one member waits
    for its last episode to end."""
    stopped = rl.train("selfplay", out=str(tmp_path), on_update=lambda row: row["version"] < version, **GAME)
    assert (stopped.status, stopped.version) == ("stopped", version)
    state = read_parts(Checkpoints(RunFolder(stopped.path).checkpoints).newest()[0])
    lineups = torch.as_tensor(state["worker-actor-0"]["sampler"]["lanes"][0]["parts"]["main"]["state"]["state/lineup"])
    assert int(lineups.max()) > 1
    assert (not state["worker-trainer"]["learner"]["pool"]["retired"]) == (version < 6)
    assert content(rl.resume(stopped.path)) == content(whole)


ROLES: dict[str, Any] = {
    "pool": {"size": 4, "every": 3, "openings": 1, "exploiters": 1, "league_exploiters": 1, "exploiter_updates": 4},
    "staleness": {"mode": "one_step"},
    "num_env_groups": 2,
}


def test_a_league_of_roles_that_was_stopped_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """Also where the next batch is made while one trains, and in several processes."""
    whole = train(tmp_path / "whole", **ROLES)
    joined = {m["role"] for row in league(whole) for m in row["members"] if not m["live"]}
    assert joined == {"main", "exploiter", "league-exploiter"}
    assert content(train(tmp_path / "local", launcher="local", **ROLES)) == content(whole)
    settings = {**GAME, **ROLES}
    stopped = rl.train("selfplay", out=str(tmp_path / "b"), on_update=lambda row: row["version"] < 6, **settings)
    assert content(rl.resume(stopped.path)) == content(whole)


class Watched:
    """What every segment of a run says of members, by the vector that made it, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lanes: int) -> None:
        self.seen: dict[tuple[int, int], list[Any]] = {}
        self.lanes, see = lanes, Outcomes.see

        def spy(outcomes: Outcomes, segment: Any) -> Any:
            count = segment.header.sample_id // segment.num_rows // segment.spec.num_writers
            a = {k: segment.arrays[k].clone() for k in ("member", "active", "terminated", "truncated", "policy_version")}
            self.seen.setdefault((segment.header.writer, count % lanes), []).append((count, a))
            return see(outcomes, segment)

        monkeypatch.setattr(Outcomes, "see", spy)

    def check(self, seats: int) -> int:
        """Nobody's member changes before his episode ends, over all segments; returns the episodes of frozen members."""
        frozen = 0
        for segments in self.seen.values():
            segments.sort(key=lambda one: one[0])
            parts = [a for _, a in segments]
            assert [count for count, _ in segments] == list(
                range(segments[0][0], segments[0][0] + self.lanes * len(parts), self.lanes)
            )
            member, ended, active = (
                torch.cat(xs)
                for xs in (
                    [a["member"].abs() for a in parts],
                    [a["terminated"] | a["truncated"] for a in parts],
                    [a["active"][:-1] for a in parts],
                )
            )
            playing = torch.zeros(member.shape[1], dtype=torch.int64)
            for t in range(len(member)):
                for env in range(member.shape[1] // seats):
                    rows = slice(env * seats, (env + 1) * seats)
                    here = active[t, rows] & (playing[rows] > 0)
                    assert torch.equal(member[t, rows][here], playing[rows][here]), "an opponent changed inside an episode"
                started = active[t] & (playing == 0)
                frozen += int((started & (member[t] > 1)).sum())
                playing = torch.where(started, member[t], playing).masked_fill(ended[t], 0)
        return frozen


HARD: dict[str, Any] = {
    "num_actors": 2,
    "num_env_groups": 2,
    "num_steps": 4,
    "total_updates": 24,
    "pool": {"size": 2, "every": 1, "latest": 0.2, "window": 20},
    "eval": {"episodes": 0},
    "checkpoint": {"every": "never"},
    "deterministic": False,
}


@pytest.mark.parametrize(
    "more",
    [
        {"staleness": {"mode": "window", "max_lag": 3}},
        {"staleness": {"mode": "one_step"}},
        {"env": "selfplay_games:Three"},
        {"pool": {"size": 2, "every": 1, "latest": 0.2, "window": 20, "openings": 2}},
        {"env": "pettingzoo:classic.tictactoe_v3", "ppo": {"num_minibatches": 1, "num_epochs": 1}},
        {"net": {"core": "gru", "hidden": (8,), "core_size": 4}, "ppo": {"num_minibatches": 1, "num_epochs": 1}},
    ],
    ids=["window", "one step", "three seats", "openings", "turns", "recurrent"],
)
def test_no_opponent_changes_inside_an_episode(more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of two, of which one is replaced at every update as soon as its last episode is over; segments are shorter than
    episodes."""
    watched = Watched(monkeypatch, lanes=2)
    run = train(tmp_path, **{**HARD, **more})
    assert run.status == "finished"
    assert watched.check(3 if "Three" in run.path.joinpath("config.json").read_text() else 2) > 30
    members = {m["name"] for row in league(run) for m in row["members"]}
    assert len(members) > 6


def test_bad_input_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for more, text in [
        ({"env": "selfplay_games:Uneven"}, "agents 'left' and 'right' differ in their spaces; self-play is for seats that one"),
        ({"env": "selfplay_games:Alone"}, r"it has one agent \(left\), and self-play needs two; use ppo"),
        ({"teams": ("left=a", "right=b")}, "this recipe says itself which policy serves an agent"),
        ({"pool": {"every": 0}}, "nobody would ever join the pool; set every, or beat"),
        ({"pool": {"size": 1}}, r"pool.size = 1: must be at least 2"),
        ({"pool": {"pick": "uniform", "power": 3.0}}, "pool.power = 3.0: is of pfsp; set pick"),
        ({"pool": {"exploiter_updates": 3}}, "there are no exploiters; set exploiters"),
        ({"launcher": "local", "placement": {"trainers": 2}}, "results of games are not shared by ranks yet; use 1"),
        (
            {"launcher": "local", "deterministic": False, "placement": {"max_actors": 2}},
            "an actor that leaves may be in an episode of a member whose place is needed",
        ),
    ]:
        with pytest.raises(rl.RunnelError, match=text):
            train(tmp_path, **more)
    assert not list(tmp_path.iterdir())


def test_a_loaded_policy_is_the_live_one_for_every_agent_and_may_be_an_opponent(whole: rl.Run, tmp_path: Path) -> None:
    policy, game = rl.load(whole.path), Bids()
    obs, _ = game.reset(seed=1)
    assert set(policy.act(obs)) == {"left", "right"}
    net = load_file(sorted((whole.path / "checkpoints").glob("0*"))[-1] / "params.safetensors")
    inner = policy.policies["left"].net
    for name, x in inner.state_dict().items():
        assert torch.equal(x, net[f"main/{name}"])
    teams = ("left=attacker", f"right=run:{whole.path}@best")
    settings = {"teams": teams, "env": "runnel.envs.team.toy:Bids", "net": {"hidden": (8,)}, "ppo": {"normalise_obs": True}}
    short = {"num_steps": 10, "total_updates": 2, "track": (), "eval": {"episodes": 2}}
    assert rl.train("ippo", out=str(tmp_path), **settings, **short).status == "finished"
