"""`runnel league` on a run of self-play: what it tells, fresh games between its members, and what it says of damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runnel as rl
from runnel.cli.main import main
from runnel.run.league import league_members

GAME: dict[str, Any] = {
    "env": "tensor:TicTacToe",
    "num_envs": 8,
    "num_steps": 16,
    "total_updates": 8,
    "net": {"hidden": (8,)},
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "pool": {"size": 3, "every": 2, "exploiters": 1, "exploiter_updates": 6},
    "track": (),
    "checkpoint": {"every": 8},
    "eval": {"episodes": 0},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rl.train("selfplay", out=str(tmp_path_factory.mktemp("runs")), name="run", **GAME).path


def test_the_command_tells_members_ratings_and_pay_offs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", str(run), "--csv", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    for part in ("Members at version 8", "exploiter-0", "main@0", "Pay-offs in seat 1", "Elo of the run"):
        assert part in text
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{n}.csv" for n in ("members", "payoffs", "payoffs-seat-0", "payoffs-seat-1")
    }
    page = (run / "report.html").read_text()
    assert "<h2>League</h2>" in page
    assert "Pay-offs in seat 1" in page
    assert (run / "report_csv" / "league-members.csv").is_file()
    assert main(["league", str(run), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    last = json.loads((run / "league.jsonl").read_text().splitlines()[-1])
    assert {m["name"] for m in data["members"] if m["dropped"] is None} == {m["name"] for m in last["members"]}
    told = {(g["player"], g["other"]): g["results"] for g in data["games"]}
    assert told["main", "main@0"] == last["games"]["main"]["main@0"][:3]


def test_members_play_as_they_were_frozen(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The live policy is the one of the checkpoint, a frozen one was it at that version, and each plays each in both seats."""
    members = league_members(run)
    (path,) = (run / "checkpoints").glob("*8")
    stored = load_file(path / "params.safetensors")
    live = members.players["main"]._anywhere
    assert live is not None
    assert all(torch.equal(x, stored[f"main/{key}"]) for key, x in live.net.state_dict().items())
    frozen = members.players["main@8"]._anywhere  # frozen after the last update: equal to the live one, in memory of its own
    assert frozen is not None
    assert all(torch.equal(x, live.net.state_dict()[key]) for key, x in frozen.net.state_dict().items())
    first = members.players["main@0"]._anywhere
    assert first is not None
    assert not all(torch.equal(x, live.net.state_dict()[key]) for key, x in first.net.state_dict().items())
    assert members.first == "main@0"
    assert main(["league", str(run), "--play", "4", "--openings", "1", "--against", "random", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    k = len(members.players) + 1
    assert data["players"] == [*members.players, "random"]
    assert data["version"] == 8
    assert len(data["pairs"]) == k * (k - 1) // 2
    assert all(len(pair["apart"]) == 2 and pair["wins"] + pair["draws"] + pair["losses"] == 8 for pair in data["pairs"])
    assert next(r for r in data["elo"] if r["player"] == "main@0")["held"]


def test_what_is_damaged_or_missing_is_told_and_nothing_else_is_lost(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "run"
    shutil.copytree(run, there)
    lines = (there / "league.jsonl").read_text().splitlines()
    (there / "league.jsonl").write_text("\n".join([lines[0], "{half", *lines[1:]]) + "\n")
    assert main(["league", str(there)]) == 1
    captured = capsys.readouterr()
    assert "Members at version 8" in captured.out
    assert "league.jsonl line 2 is not readable" in captured.err
    last = json.loads(lines[-1])
    for change, text in (
        (lambda m: {**m, "name": "main@5"}, "member main@5 of its league.jsonl is not in the checkpoint of version 8"),
        (lambda m: {**m, "checksum": "0" * 12}, "member main@0 is not what was frozen: its checksum is"),
    ):
        members = [change(m) if m["name"] == "main@0" else m for m in last["members"]]
        (there / "league.jsonl").write_text(json.dumps({**last, "members": members}) + "\n")
        assert main(["league", str(there), "--play", "2", "--trust"]) == 2
        assert text in capsys.readouterr().err


def test_other_runs_and_flags_without_games_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = rl.train("ippo", out=str(tmp_path), **{**{k: v for k, v in GAME.items() if k != "pool"}, "total_updates": 1})
    for words, text in (
        ([str(other.path)], "this run has no league.jsonl; leagues are of self-play"),
        ([str(other.path), "--play", "2"], "its checkpoint has no pool of members"),
        ([str(run), "--openings", "2"], "is of fresh games; add --play N"),
        ([str(run), "--play", "-1"], "play at least one episode"),
        ([str(run), "--play", "2", "--against", "random", "random"], "is the name of another player already"),
    ):
        assert main(["league", *words]) == 2
        assert text in capsys.readouterr().err


def test_exploitability_is_told_of_the_pool_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mixture of frozen members is that of their strategies, each of which is what was frozen."""
    pytest.importorskip("pyspiel")
    settings: dict[str, Any] = {"num_envs": 8, "num_steps": 8, "total_updates": 6, "eval": {"episodes": 0}, "track": ()}
    pool = {"every": 2, "pick": "nash", "latest": 0.0}
    path = rl.train("selfplay", env="tensor:Kuhn", pool=pool, out=str(tmp_path), **settings).path
    policies, shares = rl.run.frozen_policies(path)
    assert list(policies) == ["main@0", "main@2", "main@4", "main@6"]
    assert sum(shares.values()) == pytest.approx(1.0)
    game = rl.games.SmallGame("kuhn_poker")
    each = [game.strategy(policy) for policy in policies.values()]
    mixed = game.exploitability(game.mixture(each, list(shares.values())))
    # the last member was frozen after the last update: it is the policy that the run ended with
    assert game.exploitability(each[-1]) == pytest.approx(rl.games.exploitability(game, rl.load(path)).value, abs=1e-9)
    assert game.exploitability(each[0]) != pytest.approx(game.exploitability(each[-1]), abs=1e-4)
    capsys.readouterr()
    assert main(["eval", str(path), "--exploitability"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"a frozen member as it is picked: exploitability {mixed:.4g} in kuhn_poker" in last
