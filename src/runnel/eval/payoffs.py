"""Pay-offs: who won how often against whom, counted by pair, with intervals and the worst case of each player."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import DataError
from runnel.eval.aggregates import Interval
from runnel.eval.statistics import Array, wilson_interval

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Worst:
    """The opponent, or partner, with whom a player does worst, and how it does there."""

    player: str
    other: str
    value: Interval


@dataclass(frozen=True, eq=False)
class Payoffs:
    """`counts[i, j]` are the wins, draws and losses of player i against player j. A draw counts as half a win."""

    players: tuple[str, ...]
    counts: Counts
    """`[K, K, 3]`. The row of j has the same games as the column of j, told by the other player."""

    def __post_init__(self) -> None:
        k = len(self.players)
        if len(set(self.players)) != k:
            raise DataError(f"players need names of their own; got {', '.join(self.players)}")
        if self.counts.shape != (k, k, 3) or (self.counts < 0).any():
            raise DataError(f"{k} players need counts [{k}, {k}, 3] of at least 0; got shape {self.counts.shape}")
        if not np.array_equal(self.counts, self.counts.transpose(1, 0, 2)[:, :, ::-1]):
            raise DataError("the wins of a player against another must be the losses of the other against it")

    @classmethod
    def of(cls, players: Sequence[str], games: Sequence[tuple[str, str, Sequence[int]]]) -> Payoffs:
        """Add up `games`: a player, another one, and the wins, draws and losses of the first.

        >>> Payoffs.of("ab", [("a", "b", (2, 1, 0)), ("b", "a", (1, 0, 0))]).counts[0, 1].tolist()
        [2, 1, 1]
        """
        place = {name: i for i, name in enumerate(players)}
        counts = np.zeros((len(players), len(players), 3), np.int64)
        for first, second, found in games:
            i, j = place[first], place[second]
            counts[i, j] += np.asarray(found, np.int64)
            counts[j, i] += np.asarray(found, np.int64)[::-1]
        return cls(tuple(players), counts)

    @property
    def num_games(self) -> NDArray[np.int64]:
        """Games of each pair `[K, K]`; 0 where two have not met."""
        return np.asarray(self.counts.sum(axis=-1))

    @property
    def points(self) -> Array:
        """Wins and half the draws of each player against each other `[K, K]`."""
        return np.asarray(self.counts[..., 0] + 0.5 * self.counts[..., 1])

    @property
    def scores(self) -> Array:
        """Share of points `[K, K]`: 1 where the player of the row has won every game, NaN where two have not met."""
        games = self.num_games
        return np.where(games > 0, self.points / np.maximum(games, 1), np.nan)

    def score(self, player: str, other: str) -> Interval:
        """Share of points of `player` against `other`, with its interval."""
        i, j = self.players.index(player), self.players.index(other)
        games = int(self.num_games[i, j])
        if not games:
            raise DataError(f"{player!r} and {other!r} have not met")
        points = float(self.points[i, j])
        return Interval(points / games, *wilson_interval(points, games))

    def worst(self, player: str) -> Worst | None:
        """Against whom `player` scores least; None if it has met nobody but itself."""
        i = self.players.index(player)
        met = [(x, j) for j, x in enumerate(self.scores[i].tolist()) if j != i and not math.isnan(x)]
        if not met:
            return None
        other = self.players[min(met)[1]]
        return Worst(player, other, self.score(player, other))

    def circle(self) -> list[str]:
        """The shortest circle of players of whom each beats the next one surely, and the last one the first; empty if there is
        none. One pair is sure if its 95 % interval, widened for the number of pairs (Bonferroni), lies above one half."""
        beats = self._beats()
        found: list[int] = []
        for start in range(len(self.players)):
            path = _way_back(beats, start)
            if path and (not found or len(path) < len(found)):
                found = path
        return [self.players[i] for i in found]

    def _beats(self) -> list[list[int]]:
        games, points, k = self.num_games, self.points, len(self.players)
        pairs = max(1, int((np.triu(games, 1) > 0).sum()))
        sure = 1.0 - 0.05 / pairs

        def is_sure(i: int, j: int) -> bool:
            return bool(games[i, j]) and wilson_interval(points[i, j], int(games[i, j]), confidence=sure)[0] > 0.5

        return [[j for j in range(k) if j != i and is_sure(i, j)] for i in range(k)]


def _way_back(beats: Sequence[Sequence[int]], start: int) -> list[int]:
    """The shortest way from `start` along `beats` back to it; empty if there is none."""
    before: dict[int, int] = {}
    front = [start]
    while front:
        reached: list[int] = []
        for i in front:
            for j in beats[i]:
                if j == start:
                    path = [i]
                    while path[-1] != start:
                        path.append(before[path[-1]])
                    return path[::-1]
                if j not in before:
                    before[j] = i
                    reached.append(j)
        front = reached
    return []
