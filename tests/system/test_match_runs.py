"""Matches between runs: what plays is what `rl.load` gives, in the version that was asked for, and the command tells all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pettingzoo.classic import tictactoe_v3
from safetensors.torch import load_file

import runnel as rl
from runnel.cli import matching
from runnel.cli.main import main
from runnel.run.players import PolicyPlayer, find_player

TINY: dict[str, Any] = {
    "env": "pettingzoo:classic.tictactoe_v3",
    "num_envs": 2,
    "num_steps": 8,
    "total_updates": 3,
    "net": {"hidden": (8,)},
    "ppo": {"num_minibatches": 1, "num_epochs": 1},
    "track": (),
    "checkpoint": {"every": 1},
    "eval": {"episodes": 0},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = str(tmp_path_factory.mktemp("runs"))
    teams = {"env": "runnel.envs.team.toy:Whisper", "teams": ("sender=sender", "receiver=receiver")}
    made = {
        "one": rl.train("ippo", out=out, **{**TINY, "name": "one"}),
        "memory": rl.train("ippo", out=out, **{**TINY, "name": "memory", "seed": 2, "net": {"core": "gru", "core_size": 8}}),
        "whisper": rl.train("ippo", out=out, **{**TINY, "name": "whisper", **teams}),
        "alone": rl.train(
            "ppo", out=out, name="alone", total_updates=1, num_envs=2, num_steps=4, track=(), eval={"episodes": 2}
        ),
    }
    return {name: run.path for name, run in made.items()}


def last_open(agent: str, obs: Any, mask: Any, rng: np.random.Generator) -> int:
    return int(np.flatnonzero(mask)[-1])


def by_hand(run: Path, seat: int) -> tuple[float, int]:
    """One greedy game of a run against `last_open` in PettingZoo's own loop: what the run got, and the number of moves."""
    policy, env = rl.load(run), tictactoe_v3.env()
    env.reset(seed=1)
    policy.reset()
    moves, got = 0, 0.0
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        mine = agent == env.possible_agents[seat]
        got += float(reward) * mine
        if terminated or truncated:
            env.step(None)
            continue
        moves += 1
        env.step(int(policy.act({agent: obs})[agent]) if mine else last_open(agent, obs, obs["action_mask"], None))  # type: ignore[arg-type]
    return got, moves


@pytest.mark.parametrize("name", ["one", "memory"])
def test_a_run_plays_as_its_loaded_policy_does(runs: dict[str, Path], name: str) -> None:
    """Against PettingZoo's own loop: the same result and the same number of moves in each seat, in every environment."""
    match = rl.match({"run": runs[name], "last": last_open}, episodes=5, num_envs=2, greedy=True)
    for seat, games in enumerate(match.games):
        assert games.players[seat] == "run"
        assert [*zip(games.of("run").tolist(), games.lengths.tolist(), strict=True)] == [by_hand(runs[name], seat)] * 5
    loaded = rl.match({"run": rl.load(runs[name]), "last": last_open}, TINY["env"], episodes=5, num_envs=2, greedy=True)
    assert all(np.array_equal(a.returns, b.returns) for a, b in zip(match.games, loaded.games, strict=True))


def test_versions_are_those_that_were_asked_for(runs: dict[str, Path]) -> None:
    for which, version in (("@1#shared", 1), ("@2", 2), ("", 3)):
        player = find_player(f"run:{runs['one']}{which}", "x").player
        assert isinstance(player, PolicyPlayer)
        net = (player._anywhere or player._policies["player_1"]).net
        (path,) = [p for p in (runs["one"] / "checkpoints").iterdir() if int(p.name.partition("-")[0]) == version]
        for key, stored in load_file(path / "params.safetensors").items():
            assert net.state_dict()[key.removeprefix("shared/")].equal(stored)  # type: ignore[attr-defined]
    drawn = rl.match([f"run:{runs['one']}@1", runs["one"], "random"], episodes=3)
    assert drawn.players == ("one@1", "one", "random")
    assert drawn.versions == {"one@1": 1, "one": 3}
    assert not drawn.warnings()


@pytest.mark.parametrize(
    ("players", "more", "text"),
    [
        (["one", "whisper"], {}, "one was trained on .*tictactoe.*, and whisper on .*; name one with --env"),
        (["one", "whisper"], {"env": TINY["env"]}, "has no policy for agent 'player_1', whose seat it takes; it knows sender"),
        (["one", "run:{whisper}#sender"], {"env": TINY["env"]}, "cannot play agent 'player_1'"),
        (["one", "run:{one}#red"], {}, "has no policy 'red'; it has shared"),
        (["one", "run:{one}@9"], {}, "keeps no version 9"),
        (["one", "alone"], {}, "with policies that act for one agent"),
    ],
)
def test_players_that_cannot_meet_are_refused(
    runs: dict[str, Path], players: list[str], more: dict[str, Any], text: str
) -> None:
    given = [str(runs[p]) if p in runs else p.format(**runs) for p in players]
    with pytest.raises(rl.ConfigError, match=text):
        rl.match(given, episodes=2, **more)


def test_the_command_plays_a_match_and_measures_a_run_alone_as_before(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, memory = str(runs["one"]), str(runs["memory"])
    words = ["eval", one, memory, "random", "--episodes", "8", "--openskill", "--csv", str(tmp_path)]
    assert main(words) == 0
    text = capsys.readouterr().out
    for part in (
        "one at version 3, memory at version 3, random; 8 episodes in each seating",
        "Pay-offs",
        "Pairs",
        "Ratings",
        "mu - 3 sigma",
        "worst against",
    ):
        assert part in text
    assert {path.name for path in tmp_path.iterdir()} == {"payoffs.csv", "pairs.csv", "ratings.csv"}
    assert main(["eval", one, memory, "random", "--episodes", "8", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [(p["player"], p["other"]) for p in data["pairs"]] == [("one", "memory"), ("one", "random"), ("memory", "random")]
    assert next(rating for rating in data["elo"] if rating["player"] == "random")["value"] == 1000.0
    pair = data["pairs"][0]
    assert [game["seats"] for game in pair["apart"]] == [
        {"player_1": "one", "player_2": "memory"},
        {"player_1": "memory", "player_2": "one"},
    ]
    for key in ("wins", "draws", "losses"):
        assert pair[key] == sum(game[key] for game in pair["apart"])
    assert main(["eval", one, "--episodes", "2"]) == 0
    assert capsys.readouterr().out.startswith("mean ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["{one}", "--openings", "2"], "openings = 2: is of matches"),
        (["{alone}", "{alone}", "--greedy"], "greedy = True: is of matches"),
        (["{one}", "--no-cross-play"], "cross_play = False: is of matches"),
        (["random"], "a match needs two players"),
        (["{one}", "random", "--pass-k", "2"], "is not for matches"),
        (["{one}", "random", "--anchor", "random"], "write NAME=ELO"),
        (["{one}", "random", "--anchor", "nobody=3"], "no player has this name; they are one, random"),
        (["{one}", "random", "--anchor", "random=nan"], "give a finite rating"),
        (["{one}", "random", "--cross-play", "--anchor", "random=1"], "anchor = ['random=1']: is of opponents"),
        (["{one}", "random", "--cross-play", "--openskill"], "openskill = True: is of opponents"),
    ],
)
def test_flags_that_would_do_nothing_are_refused(
    runs: dict[str, Path],
    words: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before any game: hours of play must not end in the error of a name."""
    monkeypatch.setattr(matching, "match", lambda *a, **k: pytest.fail("it played"))
    assert main(["eval", *(word.format(**runs) for word in words), "--episodes", "2"]) == 2
    assert text in capsys.readouterr().err


def test_partners_without_ratings_are_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who turns out to be partners gets no ratings: the flags of ratings are not passed over in silence."""
    bot = tmp_path / "bot.py"
    bot.write_text("def play(agent, obs, mask, rng):\n    return int(obs[:4].argmax())\n")
    words = ["eval", f"{bot}:play", "random", "--env", "runnel.envs.team.toy:Secret", "--episodes", "4"]
    assert main([*words, "--anchor", "random=1", "--openskill"]) == 0
    assert "partners have no ratings, so --anchor and --openskill say nothing here" in " ".join(capsys.readouterr().err.split())
    assert main(words) == 0
    assert "no ratings" not in capsys.readouterr().err
