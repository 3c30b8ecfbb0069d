"""Exact solutions of small games: against OpenSpiel, against Kuhn poker by brute force, and against what is known of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kuhn_by_hand as kuhn
import numpy as np
import pytest

import runnel as rl
from runnel.cli.main import main
from runnel.core.errors import ConfigError, DataError
from runnel.games import tree
from runnel.games.small import SmallGame, Strategy
from runnel.games.trained import game_of

pyspiel = pytest.importorskip("pyspiel")
GAMES = ["kuhn_poker", "leduc_poker", "liars_dice(dice_sides=3)", "turn_based_simultaneous_game(game=goofspiel(num_cards=3))"]


def drawn(game: SmallGame, seed: int) -> Strategy:
    """Any strategy; some actions have probability 0, so that parts of the game are never reached."""
    rng = np.random.default_rng(seed)
    weights = [seat.legal * (rng.random(seat.legal.shape) * (rng.random(seat.legal.shape) < 0.7) + 1e-9) for seat in game.seats]
    first, second = (w / w.sum(axis=1, keepdims=True) for w in weights)
    return first, second


def spiel_policy(game: SmallGame, strategy: Strategy) -> Any:
    """The same strategy in OpenSpiel's form."""
    from open_spiel.python.policy import TabularPolicy

    policy = TabularPolicy(game.game)
    for seat, probabilities in zip(game.seats, strategy, strict=True):
        for key, p in zip(seat.keys, probabilities, strict=True):
            policy.policy_for_key(key)[:] = p
    return policy


@pytest.mark.parametrize("name", GAMES)
def test_open_spiel_gives_the_same_numbers(name: str) -> None:
    from open_spiel.python.algorithms.exploitability import nash_conv

    game = SmallGame(name)
    for strategy in (game.uniform(), drawn(game, 1)):
        due = nash_conv(game.game, spiel_policy(game, strategy), return_only_nash_conv=False, use_cpp_br=name != GAMES[-1])
        assert game.gains(strategy) == pytest.approx(due.player_improvements, abs=1e-9)
        assert game.exploitability(strategy) == pytest.approx(due.nash_conv / 2, abs=1e-9)


def test_kuhn_poker_by_brute_force() -> None:
    """All 64 pure strategies of each seat, by the rules of the game alone."""
    game = SmallGame("kuhn_poker")
    for seed in range(3):
        strategy = drawn(game, seed)
        bets = []
        for seat, of in enumerate(game.seats):
            table = np.zeros((3, 2))
            for key, p in zip(of.keys, strategy[seat], strict=True):
                table[int(key[0]), kuhn.HISTORIES[seat].index(key[1:])] = p[1]
            bets.append(table)
        assert game.values(strategy)[0] == pytest.approx(kuhn.value(*bets), abs=1e-12)
        assert game.exploitability(strategy) == pytest.approx(kuhn.exploitability(*bets), abs=1e-12)


def test_what_is_known_of_kuhn_and_leduc() -> None:
    for name, uniform in (("kuhn_poker", 0.458333), ("leduc_poker", 2.373611)):
        game = SmallGame(name)
        assert game.exploitability(game.uniform()) == pytest.approx(uniform, abs=1e-6)
        first = [np.eye(seat.legal.shape[1])[seat.legal.argmax(axis=1)] for seat in game.seats]
        assert game.exploitability((first[0], first[1])) == pytest.approx(1.0, abs=1e-12)
    assert [len(seat.keys) for seat in game.seats] == [468, 468]


@pytest.mark.parametrize("name", GAMES[:3])
def test_a_mixture_gets_what_its_members_get_on_average(name: str) -> None:
    """Against any opponent, as a member that is drawn before each game; a mean of probabilities would not."""
    from open_spiel.python.algorithms.policy_aggregator import PolicyAggregator

    game = SmallGame(name)
    members, weights, other = [drawn(game, i) for i in range(3)], np.array([0.2, 0.5, 0.3]), drawn(game, 9)
    mixed = game.mixture(members, weights)
    for seat in (0, 1):
        pairs = [(m[0], other[1]) if seat == 0 else (other[0], m[1]) for m in (*members, mixed)]
        *each, found = (game.values(pair)[seat] for pair in pairs)
        assert found == pytest.approx(weights @ each, abs=1e-12)
    policies = [spiel_policy(game, member) for member in members]
    theirs = PolicyAggregator(game.game).aggregate([0, 1], [policies, policies], [weights, weights])
    for seat, of in enumerate(game.seats):
        for key, p in zip(of.keys, mixed[seat], strict=True):
            for action, due in theirs.policy[seat][key].items():
                assert p[action] == pytest.approx(due, abs=1e-6)


def test_a_plan_and_its_probabilities_are_one() -> None:
    game = SmallGame("leduc_poker")
    strategy = drawn(game, 4)
    for seat in (0, 1):
        plan = game.plan(seat, strategy[seat])
        assert game.plan(seat, game.from_plan(seat, plan)) == pytest.approx(plan, abs=1e-12)


# -------------------------------------------------------------------------------------------------------------- trained runs
@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rl.Run:
    env, out = str(Path(__file__).with_name("spiel_env.py")) + ":Kuhn", str(tmp_path_factory.mktemp("runs"))
    teams = ("player_1=late", "player_0=early")  # the order of routes is not that of seats
    settings: dict[str, Any] = {"net": {"hidden": (8,)}, "num_envs": 4, "num_steps": 8, "track": ()}
    return rl.train("ippo", env=env, teams=teams, total_updates=2, eval={"episodes": 0}, out=out, **settings)


def test_a_trained_policy_is_judged_as_it_plays(run: rl.Run) -> None:
    """The strategy has the probabilities with which actions are drawn, in the right seat."""
    policy: Any = rl.load(run.path)
    game = SmallGame("kuhn_poker")
    strategy = game.strategy(policy)
    for seat, agent in enumerate(("player_0", "player_1")):
        for number in (0, len(game.seats[seat].keys) - 1):
            obs = {"observation": game.seats[seat].seen[number], "action_mask": np.ones(2, np.int8)}
            found = policy.probabilities({agent: obs})[agent]
            assert strategy[seat][number] == pytest.approx(found, abs=1e-6)
            acts = [policy.act({agent: obs}, deterministic=False)[agent] for _ in range(400)]
            assert np.mean(acts) == pytest.approx(found[1], abs=0.1)  # four standard deviations of 400 draws
    solved = rl.games.exploitability("kuhn_poker", policy)
    assert solved.value == game.exploitability(strategy) == pytest.approx(sum(solved.gains) / 2)
    assert solved.values == game.values(strategy)


def test_a_closed_action_has_no_probability(run: rl.Run) -> None:
    policy: Any = rl.load(run.path)
    seen = {"observation": np.zeros((3, 11), np.float32), "action_mask": np.array([[0, 1], [1, 0], [1, 1]], np.int8)}
    found = policy.probabilities({"player_0": seen})["player_0"]
    assert found[:2].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert found.sum(axis=1) == pytest.approx(1.0)


def test_the_command_tells_each_run_and_their_mixture(run: rl.Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run.path), "--exploitability", "kuhn_poker"]) == 0
    policy = rl.load(run.path)
    value = rl.games.exploitability("kuhn_poker", policy).value
    assert f"exploitability {value:.4g} in kuhn_poker" in capsys.readouterr().out
    for words, *more in (("name the game",), ("leave this out", "kuhn_poker", "--seed", "3"), ("and 3 actions", "leduc_poker")):
        assert main(["eval", str(run.path), "--exploitability", *more]) != 0
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "kwargs", "due"),
    [
        ("tensor:Kuhn", {}, "kuhn_poker"),
        ("tensor:Leduc", None, "leduc_poker"),
        ("openspiel:liars_dice(dice_sides=3)", {}, "liars_dice(dice_sides=3)"),
        ("openspiel:liars_dice", {"dice_sides": 3}, "liars_dice(dice_sides=3)"),
    ],
)
def test_the_game_of_a_run_is_found_by_its_environment(env: str, kwargs: dict[str, Any] | None, due: str) -> None:
    game, same = game_of(env, kwargs), SmallGame(due)
    for seat, other in zip(game.seats, same.seats, strict=True):
        assert seat.keys == other.keys
        assert np.array_equal(seat.seen, other.seen)


# ------------------------------------------------------------------------------------------------------------------ refusals
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kuhn", "does not know"),
        ("kuhn_poker(players=3)", "3 players"),
        ("matrix_rps", "turn_based_simultaneous_game"),
        ("phantom_ttt", "states"),
    ],
)
def test_games_that_cannot_be_solved_are_refused(name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_STATES", 1000)
    with pytest.raises(ConfigError, match=words):
        SmallGame(name)


def test_strategies_that_are_none_are_refused() -> None:
    game = SmallGame("kuhn_poker")
    good = game.uniform()
    for bad in (good[0][:3], good[0] * 0.5, good[0] - 1.0):
        with pytest.raises(DataError, match="sum to 1"):
            game.exploitability((bad, good[1]))
    for weights in ([1.0], [0.0, 0.0], [2.0, -1.0]):
        with pytest.raises(DataError, match="weights"):
            game.mixture([good, good], weights)
    with pytest.raises(DataError, match="at least one"):
        game.mixture([])
    with pytest.raises(DataError, match="how probable"):
        game.strategy(object())
