"""Matches: players meet in an environment of several agents, in every seating, on the same seeds.

A seat is one agent or a team of agents. Two players of a game sit in every way that seats them both, since the first mover, or
one side of the map, is often the stronger one. Each seating plays the same episodes: environment, noise and random openings
begin from the same seeds. Every number is given for each seating apart, and for all together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from runnel.core.contracts.evaluation import Progress
from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.rng import make_rng, make_seed
from runnel.envs.team.contract import TeamVector
from runnel.eval.aggregates import Interval
from runnel.eval.openings import RandomOpenings
from runnel.eval.payoffs import Payoffs
from runnel.eval.players import MatchPlayer, RandomPlayer, Sitting, has_bounds
from runnel.eval.ratings import TeamGame
from runnel.eval.statistics import Array, bootstrap_interval
from runnel.eval.tally import Tally
from runnel.eval.teams import TeamPlay

RANDOM_EPISODES = 16
"""Episodes of random moves that show whether a game pays all seats alike."""
MOST_SEATS = 5
"""With more seats, two players would sit in more than 30 ways."""
EVEN = 1e-9
"""Returns that differ by less than this share of their size are a draw: sums of equal rewards may differ in the last digit."""


@dataclass(frozen=True, eq=False)
class Games:
    """The episodes of one seating."""

    players: tuple[str, ...]
    """Who sat in each seat."""
    returns: Array
    """`[episodes, seats]`: the mean over the agents of a seat. Episode i began from the same seed in every seating."""
    lengths: Array
    num_cut: int = 0
    """Episodes that were cut at the limit of steps."""

    def of(self, player: str) -> Array:
        """What `player` got in each episode: the mean over its seats."""
        return np.asarray(self.returns[:, [who == player for who in self.players]].mean(axis=1))

    @property
    def alike(self) -> bool:
        """Whether all episodes went alike, as far as their results and lengths say."""
        return len(self.lengths) > 1 and bool(
            (self.returns == self.returns[0]).all() and (self.lengths == self.lengths[0]).all()
        )


@dataclass(frozen=True, eq=False)
class Encounter:
    """What a player got against another one: in one seating, or in all of them together."""

    player: str
    other: str
    wins: int
    draws: int
    losses: int
    score: Interval
    """Share of points; a draw is half a win."""
    mean: Interval
    """Mean return of the player; the interval resamples episodes, with those of one seed in all seatings together."""


@dataclass(frozen=True, eq=False)
class Match:
    """All games that some players played against each other, and what follows from them."""

    env: str
    players: tuple[str, ...]
    seats: Mapping[str, tuple[str, ...]]
    """The agents of each seat."""
    games: tuple[Games, ...]
    episodes: int
    """Episodes of each seating."""
    seed: int
    cooperative: bool
    """Whether players are partners: what counts is then the mean return of all agents, whoever plays them."""
    duplicate: bool = False
    """Whether a win is that of a whole round (one seed, all seatings): who got more over all its seats has won it. Where seats
    are of different kinds, such as hunters and their prey, one game says who had the better seat."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """The versions of those players that come from runs."""

    def seatings(self, player: str, other: str) -> list[Games]:
        """The games of two players: one entry for each way in which they sat. Of a player and itself: its self-play."""
        return [games for games in self.games if {*games.players} == {player, other}]

    def between(self, player: str, other: str, *, seating: Sequence[str] | None = None, seat: str | None = None) -> Encounter:
        """What `player` got against `other`: in all seatings together, in one, or in those in which it has `seat`."""
        found = [g for g in self.seatings(player, other) if seating is None or g.players == tuple(seating)]
        found = [g for g in found if seat is None or g.players[self._place(seat)] == player]
        if not found:
            raise ConfigError("players", f"{player}, {other}", "these two have not met in that seating")
        together = self.duplicate and seating is None and seat is None
        wins, draws, losses = _points(*self._compared(found, player, other, together=together))
        score = Payoffs.of(("a", "b"), [("a", "b", (wins, draws, losses))]).score("a", "b")
        by_seed = np.stack([self._counts(games, player) for games in found]).mean(axis=0)
        mean = Interval(float(by_seed.mean()), *bootstrap_interval(by_seed.tolist()))
        return Encounter(player, other, wins, draws, losses, score, mean)

    @staticmethod
    def _compared(found: Sequence[Games], player: str, other: str, *, together: bool) -> tuple[Array, Array]:
        """What two players got in each game, or, `together`, in each round."""
        mine, theirs = (np.stack([games.of(who) for games in found]) for who in (player, other))
        return (mine.mean(axis=0), theirs.mean(axis=0)) if together else (mine, theirs)

    @property
    def payoffs(self) -> Payoffs:
        """Wins, draws and losses of all pairs, over all seatings."""
        found = []
        for a, b in combinations(self.players, 2):
            if self.seatings(a, b):
                pair = self.between(a, b)
                found.append((a, b, (pair.wins, pair.draws, pair.losses)))
        return Payoffs.of(self.players, found)

    def mean_returns(self, seat: str | None = None) -> Array:
        """Mean return of the player of each row, with the player of each column in the other seats `[K, K]`: when it sits in
        `seat`, or over all seatings. Of partners, that of the whole team. NaN where they have not met."""
        table = np.full((len(self.players),) * 2, np.nan)
        for (i, a), (j, b) in product(enumerate(self.players), repeat=2):
            found = [g for g in self.seatings(a, b) if seat is None or g.players[self._place(seat)] == a]
            if found:
                table[i, j] = np.mean([self._mean(g, a, seat) for g in found])
        return table

    def _mean(self, games: Games, player: str, seat: str | None) -> float:
        apart = seat is not None and not self.cooperative
        return float((games.returns[:, self._place(str(seat))] if apart else self._counts(games, player)).mean())

    def _counts(self, games: Games, player: str) -> Array:
        """The returns by which `player` is judged: its own, or those of all agents. `[episodes]`"""
        sizes = [len(agents) for agents in self.seats.values()]
        return np.average(games.returns, axis=1, weights=sizes) if self.cooperative else games.of(player)

    def _place(self, seat: str) -> int:
        if seat not in self.seats:
            raise ConfigError("seat", seat, f"the seats are {', '.join(self.seats)}")
        return list(self.seats).index(seat)

    def gap(self, player: str) -> float:
        """How much better a player does with itself than with the others, in mean return; NaN if either was not played."""
        table, i = self.mean_returns(), self.players.index(player)
        others = np.delete(table[i], i)
        return float(table[i, i] - others.mean()) if len(others) else float("nan")

    def worst(self, player: str) -> Encounter:
        """The opponent with whom `player` scores least; of partners, the one with whom the team gets least."""
        met = [self.between(player, other) for other in self.players if other != player and self.seatings(player, other)]
        if not met:
            raise ConfigError("players", player, "met nobody; a worst case needs somebody else")
        if self.cooperative:
            return min(met, key=lambda pair: pair.mean.value)
        return min(met, key=lambda pair: (pair.score.value, pair.mean.value))

    def rounds(self) -> list[TeamGame]:
        """Every game (of a `duplicate` match every round) of two different players as one of two teams, for `rate_skill`."""
        found = []
        for a, b in combinations(self.players, 2):
            if games := self.seatings(a, b):
                mine, theirs = self._compared(games, a, b, together=self.duplicate)
                results = zip(mine.flatten().tolist(), theirs.flatten().tolist(), strict=True)
                found += [TeamGame(((a,), (b,)), result) for result in results]
        return found

    def warnings(self) -> list[str]:
        """What should be known of these games, in words."""
        told = []
        if alike := [g for g in self.games if g.alike]:
            who = " and ".join(dict.fromkeys(alike[0].players))
            told.append(
                f"in {len(alike)} of {len(self.games)} seatings all {self.episodes} episodes went alike (first: {who}), so "
                "their intervals say nothing; let actions be drawn, or begin with random moves (openings)"
            )
        if num := sum(games.num_cut for games in self.games):
            told.append(f"{num:,} episodes were cut at the limit of steps; their returns are those until then")
        return told


def _points(mine: Array, theirs: Array) -> tuple[int, int, int]:
    """Wins, draws and losses."""
    even = _is_even(mine, theirs)
    wins = int(((mine > theirs) & ~even).sum())
    return wins, int(even.sum()), int(even.size - even.sum()) - wins


def _is_even(mine: Array, theirs: Array) -> NDArray[np.bool_]:
    return np.asarray(np.abs(mine - theirs) <= EVEN * np.maximum(1.0, np.maximum(np.abs(mine), np.abs(theirs))))


def seats_of(agents: Sequence[str], patterns: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The seats of a game, by name. Each pattern (a regular expression of whole agent ids) is a seat. Without patterns, agents
    whose names differ in a number alone are one seat; where that makes a single seat, each agent has its own.

    >>> seats_of(["player_1", "player_2"])
    {'player_1': ('player_1',), 'player_2': ('player_2',)}
    >>> seats_of(["wolf_0", "wolf_1", "sheep"])
    {'wolf': ('wolf_0', 'wolf_1'), 'sheep': ('sheep',)}
    >>> seats_of(["a0", "a1", "a2"], ["a0", "a[12]"])
    {'a0': ('a0',), 'a[12]': ('a1', 'a2')}
    """
    if patterns:
        return _by_pattern(agents, patterns)
    groups: dict[str, list[str]] = {}
    for agent in agents:
        groups.setdefault(re.sub(r"[_-]?\d+$", "", agent) or agent, []).append(agent)
    found: dict[str, tuple[str, ...]] = {k: tuple(v) for k, v in groups.items()}
    found = found if len(groups) > 1 else {agent: (agent,) for agent in agents}
    _check_number(found, agents)
    return found


def _by_pattern(agents: Sequence[str], patterns: Sequence[str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    left = list(agents)
    for pattern in patterns:
        try:
            mine = tuple(agent for agent in left if re.fullmatch(pattern, agent))
        except re.error as error:
            raise ConfigError("seats", pattern, f"this is no regular expression ({error})") from error
        if not mine:
            rest = ", ".join(left) or "none"
            raise ConfigError("seats", pattern, f"matches no agent that is left (left: {rest}; all: {', '.join(agents)})")
        found[pattern] = mine
        left = [agent for agent in left if agent not in mine]
    if left:
        raise ConfigError("seats", list(patterns), f"agent {left[0]!r} has no seat; add a pattern for it")
    _check_number(found, agents)
    return found


def _check_number(seats: Mapping[str, tuple[str, ...]], agents: Sequence[str]) -> None:
    if not 2 <= len(seats) <= MOST_SEATS:
        fix = f"a match needs 2 to {MOST_SEATS} seats; give each team of agents ({', '.join(agents)}) a pattern"
        raise ConfigError("seats", list(seats), fix)


def seatings_of(player: str, other: str, num_seats: int) -> list[tuple[str, ...]]:
    """Every way in which two players sit, both of them present; one way for a player and itself.

    >>> seatings_of("a", "b", 2), seatings_of("a", "a", 2)
    ([('a', 'b'), ('b', 'a')], [('a', 'a')])
    """
    if player == other:
        return [(player,) * num_seats]
    return [who for who in product((player, other), repeat=num_seats) if len({*who}) == 2]


@dataclass(frozen=True)
class Rules:
    """How a match is played."""

    episodes: int
    seed: int = 0
    max_steps: int = 27_000
    openings: int = 0
    """Steps at the beginning of each episode in which all agents move at random, the same in every seating."""


def play_match(
    env: str,
    players: Sequence[MatchPlayer],
    seats: Mapping[str, tuple[str, ...]],
    vector: TeamVector,
    rules: Rules,
    *,
    cross_play: bool | None = None,
    duplicate: bool | None = None,
    progress: Progress | None = None,
) -> Match:
    """Let every two of `players` play all their seatings in `vector`, which has a policy for each agent.

    With `cross_play` they are partners, and each also plays with itself; None: where all seats always get the same. With
    `duplicate` rounds count, not games; None: where seats differ in their agents.
    """
    pairs = [(a.name, b.name) for a, b in combinations(players, 2)]
    alone = [(a.name, a.name) for a in players]
    by_name = {player.name: player for player in players}
    if len(by_name) < len(players):
        raise ConfigError("players", [player.name for player in players], "give each player a name of its own")
    for player in players:  # whoever cannot take a seat says so before anything is played
        player.sit(vector, list(vector.sides), seed=rules.seed)
    made = RandomOpenings(vector, rules.openings) if rules.openings else vector

    def play(some: Sequence[tuple[str, str]]) -> tuple[Games, ...]:
        ways = [(pair, who) for pair in some for who in seatings_of(*pair, len(seats))]
        games = []
        for done, (pair, who) in enumerate(ways):
            if progress is not None:
                progress(done, len(ways))
            chosen = {seat: by_name[name] for seat, name in zip(seats, who, strict=True)}
            games.append(_play(made, seats, chosen, rules, make_seed(rules.seed, "match", *sorted(pair))))
        return tuple(games)

    found = play([*pairs, *alone] if cross_play else pairs)
    together = cross_play if cross_play is not None else all(map(_pays_alike, found)) and _is_shared(vector, seats, rules)
    if together and cross_play is None:
        found = (*found, *play(alone))
    rounds = _differ(vector, seats) if duplicate is None else duplicate
    return Match(env, tuple(by_name), dict(seats), found, rules.episodes, rules.seed, together, rounds)


def _differ(vector: TeamVector, seats: Mapping[str, tuple[str, ...]]) -> bool:
    """Whether seats are of different kinds: they have other agents, as far as their number and their spaces tell."""
    specs = {side.agents[0]: side.spec for side in vector.sides.values()}
    first, *others = ([specs[agent] for agent in agents] for agents in seats.values())
    return any(other != first for other in others)


def _pays_alike(games: Games) -> bool:
    """Whether all seats got the same in every episode."""
    return bool(_is_even(games.returns, games.returns[:, :1]).all())


def _is_shared(vector: TeamVector, seats: Mapping[str, tuple[str, ...]], rules: Rules) -> bool:
    """Whether all seats get the same also where all move at random: two good players may always draw, and play against each
    other. Where boxes have no bounds, nothing is drawn, and what was played has to tell."""
    if not all(has_bounds(side.spec.action) for side in vector.sides.values()):
        return True
    rules = replace(rules, episodes=RANDOM_EPISODES)
    return _pays_alike(_play(vector, seats, dict.fromkeys(seats, RandomPlayer()), rules, make_seed(rules.seed, "random")))


def _play(
    vector: TeamVector, seats: Mapping[str, tuple[str, ...]], players: Mapping[str, MatchPlayer], rules: Rules, seed: int
) -> Games:
    """The episodes of one seating."""
    policy_of = {side.agents[0]: policy for policy, side in vector.sides.items()}
    mine: dict[str, list[str]] = {}
    for seat, player in players.items():
        mine.setdefault(player.name, []).extend(policy_of[agent] for agent in seats[seat])
    by_name = {player.name: player for player in players.values()}
    tally, attempt = Tally(rules.episodes, vector.num_envs), 0
    while tally.missing:  # again only where episodes were cut: their environments need a reset to leave those
        began = seed if attempt == 0 else make_seed(seed, "again", attempt)
        vector.reset(began)
        sat = [by_name[name].sit(vector, policies, seed=began) for name, policies in mine.items()]
        noise_sizes = {policy: size for one in sat for policy, size in one.noise_sizes.items()}
        states = {policy: state for one in sat for policy, state in one.states.items()}
        team = TeamPlay(vector, noise_sizes=noise_sizes, states=states, max_steps=rules.max_steps)
        team.play(_together(sat, mine.values()), tally, rng=make_rng(began, "noise"))
        attempt += 1
    result = tally.result()
    returns = [np.mean([result.extra[f"return/{policy_of[agent]}"] for agent in agents], axis=0) for agents in seats.values()]
    cut = int(sum(result.extra.get("cut", ())))
    return Games(tuple(p.name for p in players.values()), np.stack(returns, axis=1), np.asarray(result.extra["length"]), cut)


def _together(sat: Sequence[Sitting], policies: Collection[Sequence[str]]) -> Callable[[Batch], Batch]:
    """The answer of all players to the rows of all policies."""

    def answer(rows: Batch) -> Batch:
        found = Batch()
        for one, mine in zip(sat, policies, strict=True):
            found |= one.answer(Batch({k: x for k, x in rows.items() if k.partition("/")[0] in mine}))
        return found

    return answer
