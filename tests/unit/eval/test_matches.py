"""Matches: true to exact odds, the same in whichever order players are named, and every seat is told apart."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

sys.path.insert(0, str(Path(__file__).parents[1] / "envs"))
from team_envs import Turns

import runnel as rl
from runnel.core.spaces import ActionSpec, multi_action
from runnel.eval.matches import Match, seatings_of, seats_of
from runnel.eval.players import random_actions
from runnel.eval.ratings import fit_elo, rate_skill

TICTACTOE = "pettingzoo:classic.tictactoe_v3"


def lowest(agent: str, obs: Any, mask: Any, rng: np.random.Generator) -> int:
    return int(mask.argmax())


class Silent:
    """A program of a user that has forgotten what it is called by."""


def highest(agent: str, obs: Any, mask: Any, rng: np.random.Generator) -> int:
    return int(np.flatnonzero(mask)[-1])


class Pays:
    """Three agents; each is paid what it says, and the episode ends."""

    possible_agents = ("red_0", "red_1", "blue_0")

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

    def step(self, actions: dict[str, int]) -> Any:
        self.agents, everybody = [], self.possible_agents
        obs = {agent: np.zeros(1, np.float32) for agent in everybody}
        return obs, {a: float(actions[a]) for a in everybody}, dict.fromkeys(everybody, True), {}, {}


@pytest.fixture(scope="module")
def chance() -> Match:
    return rl.match({"x": "random", "y": "random"}, "tensor:TicTacToe", episodes=3000, num_envs=200, seed=3)


def test_random_play_has_the_exact_odds_of_tic_tac_toe(chance: Match) -> None:
    """The first player wins 58.49 % of random games, 12.70 % are draws (exact, by counting all games). Of 3,000 games of each
    seating the shares lie within 3.5 standard errors."""
    assert [games.players for games in chance.games] == [("x", "y"), ("y", "x")]
    for games in chance.games:
        first, second = games.players
        pair = chance.between(first, second, seating=games.players)
        for found, true in ((pair.wins, 0.5849), (pair.draws, 0.1270), (pair.losses, 0.2881)):
            assert abs(found / 3000 - true) < 3.5 * np.sqrt(true * (1 - true) / 3000)
    together = chance.between("x", "y")
    assert together.wins + together.draws + together.losses == 6000
    assert abs(together.score.value - 0.5) < 3.5 * np.sqrt(0.25 / 6000)  # both seats together, equal players are equal
    assert chance.mean_returns("player_0")[0, 1] > 0.2 > -0.2 > chance.mean_returns("player_1")[0, 1]
    rating = fit_elo(chance.payoffs, anchors={"y": 1000.0})["x"]
    assert abs(rating.value - 1000.0) < 3.5 / 1.96 * (rating.high - rating.value)


def test_a_match_is_the_same_in_whichever_order_players_are_named() -> None:
    players = {"low": lowest, "high": highest, "random": "random"}
    one = rl.match(players, TICTACTOE, episodes=12, num_envs=5, seed=2)
    other = rl.match(dict(reversed(players.items())), TICTACTOE, episodes=12, num_envs=5, seed=2)
    for games in one.games:
        (same,) = [g for g in other.games if g.players == games.players]
        assert np.array_equal(games.returns, same.returns)
    assert np.array_equal(one.payoffs.counts, other.payoffs.counts[::-1, ::-1])
    place = [games.players for games in one.games].index(("low", "random"))
    elsewhere = rl.match(players, TICTACTOE, episodes=12, num_envs=5, seed=3).games[place]
    assert not np.array_equal(one.games[place].lengths, elsewhere.lengths)
    assert {s.player: s.games for s in rate_skill(one.rounds())} == dict.fromkeys(players, 48)


def test_games_that_all_go_alike_are_told_and_random_openings_part_them() -> None:
    """Two players that never draw play one game again and again. Openings are the same in both seatings: where all is opening
    (nine moves fill the board), so are the games."""
    players = {"low": lowest, "high": highest}
    fixed = rl.match(players, TICTACTOE, episodes=20)
    assert "in 2 of 2 seatings all 20 episodes went alike" in fixed.warnings()[0]
    opened = rl.match(players, TICTACTOE, episodes=20, openings=2)
    assert not opened.warnings()
    assert len({*opened.games[0].lengths.tolist()}) > 1
    filled = rl.match(players, TICTACTOE, episodes=20, openings=9).games
    assert np.array_equal(filled[0].returns, filled[1].returns)
    assert len({*filled[0].lengths.tolist()}) > 1


def test_one_player_is_made_anew_for_each_episode_of_an_agent() -> None:
    born: list[int] = []

    class Counts:
        def __init__(self) -> None:
            born.append(0)

        def __call__(self, agent: str, obs: Any, mask: Any, rng: np.random.Generator) -> int:
            assert mask is None
            born[-1] += 1
            return 0

    rl.match({"own": Counts, "random": "random"}, lambda: Turns(length=4), episodes=3, num_envs=1, cross_play=False)
    assert born == [2] * 6  # three episodes of each seating, in which each agent decides twice


def test_who_always_gets_the_same_plays_with_itself_too_and_the_gap_is_told() -> None:
    """In `Secret` both are paid the share of right symbols: one who says its symbol is right, one who says another never is."""

    def right(agent: str, obs: Any, mask: Any, rng: np.random.Generator) -> int:
        return int(obs[:4].argmax())

    def wrong(agent: str, obs: Any, mask: Any, rng: np.random.Generator) -> int:
        return (int(obs[:4].argmax()) + 1) % 4

    quiet = {"luck": 0.0}
    match = rl.match({"right": right, "wrong": wrong}, "runnel.envs.team.toy:Secret", kwargs=quiet, episodes=10)
    assert match.cooperative
    assert match.mean_returns().tolist() == [[1.0, 0.5], [0.5, 0.0]]
    assert (match.gap("right"), match.gap("wrong")) == (0.5, -0.5)
    assert (match.worst("right").other, match.worst("right").mean.value) == ("wrong", 0.5)


def test_where_seats_differ_rounds_are_won_and_not_games() -> None:
    """Whoever has two agents is paid more for them than the other one for its own, so a game says who had that seat."""
    unequal = {
        "better": lambda agent, obs, mask, rng: 7 if agent.startswith("red") else 2,
        "worse": lambda agent, obs, mask, rng: 6 if agent.startswith("red") else 1,
    }
    match = rl.match(unequal, Pays, episodes=10)
    assert [match.between("better", "worse", seat=seat).score.value for seat in ("red", "blue")] == [1.0, 0.0]
    pair = match.between("better", "worse")
    assert (pair.wins, pair.losses) == (10, 0)
    assert len(match.rounds()) == 10
    games = rl.match(unequal, Pays, episodes=10, duplicate=False)
    assert (games.between("better", "worse").wins, games.between("better", "worse").losses) == (10, 10)


def test_players_that_only_draw_are_not_taken_for_partners() -> None:
    """In `Pays` two players that say the same always get the same; the game does not."""
    same = {"a": lambda agent, obs, mask, rng: 3, "b": lambda agent, obs, mask, rng: 3}
    match = rl.match(same, Pays, episodes=4)
    assert not match.cooperative
    assert (match.between("a", "b").draws, match.worst("a").score.value) == (4, 0.5)


def test_seats() -> None:
    agents = ["red_0", "red_1", "blue_0"]
    assert seats_of(agents) == {"red": ("red_0", "red_1"), "blue": ("blue_0",)}
    assert len(seatings_of("a", "b", 3)) == 6
    for patterns, text in (
        (["red_.*"], "agent 'blue_0' has no seat"),
        (["red_.*", "green"], "matches no agent that is left"),
        (["red_.*", "("], "this is no regular expression"),
        ([".*"], "needs 2 to 5 seats"),
    ):
        with pytest.raises(rl.ConfigError, match=text):
            seats_of(agents, patterns)


def test_a_team_of_agents_is_one_seat_and_gets_their_mean() -> None:
    says = {"red_0": 6, "red_1": 1, "blue_0": 4}
    players = {"own": lambda agent, obs, mask, rng: says[agent], "two": lambda agent, obs, mask, rng: 2}
    match = rl.match(players, Pays, episodes=2)
    assert match.seats == {"red": ("red_0", "red_1"), "blue": ("blue_0",)}
    assert match.mean_returns("red").tolist() == pytest.approx(np.array([[np.nan, 3.5], [2.0, np.nan]]), nan_ok=True)
    assert match.mean_returns("blue").tolist() == pytest.approx(np.array([[np.nan, 4.0], [2.0, np.nan]]), nan_ok=True)
    assert match.between("own", "two").mean.value == 3.75
    assert match.duplicate  # two agents against one
    assert (match.between("own", "two").wins, match.between("own", "two").losses) == (2, 0)  # 3.75 against 2 in both rounds
    games = rl.match(players, Pays, episodes=2, duplicate=False)
    assert games.between("own", "two").wins == 4
    assert not rl.match(players, Pays, episodes=1, seats=("red_0", "red_1", "blue_0")).duplicate
    team = rl.match(players, Pays, episodes=2, cross_play=True)  # as partners, all three agents count alike
    assert team.mean_returns() == pytest.approx(np.array([[11 / 3, (9 / 3 + 8 / 3) / 2], [(9 / 3 + 8 / 3) / 2, 2.0]]))
    assert team.mean_returns("red")[0] == pytest.approx([11 / 3, 9 / 3])
    assert (team.worst("own").other, team.gap("two")) == ("two", pytest.approx(2.0 - 17 / 6))
    each = rl.match(players, Pays, episodes=2, seats=("red_0", "red_1", "blue_0"))
    assert len(each.games) == 6
    pair = each.between("own", "two", seating=("own", "two", "own"))
    assert (pair.mean.value, pair.wins, pair.losses) == (5.0, 2, 0)
    assert each.between("own", "two", seating=("two", "own", "two")).losses == 2


@pytest.mark.parametrize(
    ("players", "more", "text"),
    [
        (["random"], {}, "a match needs two players"),
        (["random", "random"], {}, "stands twice among the players"),
        (["random", "nowhere"], {}, "there is no such folder; give a run's folder"),
        (["random", 3], {}, "give a run's folder"),
        (["random", "math:pi"], {}, "give a function play"),
        (["random", lambda agent, obs, mask, rng: 9], {}, "chose 9 for agent 'player_"),
        (["random", lambda agent, obs, mask, rng: None], {}, "chose None|is no action"),
        (["random", lambda agent, obs: 0], {}, "cannot be called .too many positional arguments"),
        (["random", Silent], {}, "cannot be called"),
        (["random", lowest], {"env": None}, "name what they play with --env"),
        (["random", lowest], {"episodes": 0}, "episodes = 0: use 1 or more"),
        (["random", lowest], {"openings": -1}, "openings = -1: use 0 or more"),
        (["random", lowest], {"env": "CartPole-v1"}, "environments of several agents have no ids"),
    ],
)
def test_bad_input_is_refused_in_words(players: list[Any], more: dict[str, Any], text: str) -> None:
    with pytest.raises(rl.RunnelError, match=text):
        rl.match(players, **{"env": TICTACTOE, "episodes": 2, **more})


def test_random_actions_are_uniform_over_what_is_allowed() -> None:
    """Of every kind of action; within 4 standard errors."""
    rng = np.random.default_rng(0)
    choice = ActionSpec("discrete", num_actions=4)
    box = ActionSpec("continuous", (2,), low=(-1.0, 0.0), high=(1.0, 4.0))
    mask = np.array([[True, False, True, True]] * 6000)
    drawn = random_actions(choice, rng.random((6000, 1)), mask)
    assert np.abs(np.bincount(drawn, minlength=4) - [2000, 0, 2000, 2000]).max() < 4 * np.sqrt(6000 * 2 / 9)
    spec = multi_action((choice, box), ())
    found = random_actions(spec, rng.random((4000, 3)), np.array([[False, False, True, True]] * 4000))
    assert found.shape == (4000, 3)
    assert {*found[:, 0]} == {2.0, 3.0}
    assert found[:, 1:].mean(axis=0) == pytest.approx([0.0, 2.0], abs=0.08)
    with pytest.raises(rl.ConfigError, match="has no bounds here"):
        random_actions(ActionSpec("continuous", (1,), low=(-np.inf,), high=(np.inf,)), rng.random((1, 1)))
