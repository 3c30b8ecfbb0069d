"""Tables of pay-offs and ratings: for matches, for leagues, for their pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runnel.eval.aggregates import Interval
from runnel.eval.payoffs import Payoffs
from runnel.eval.ratings import Ratings, Skill
from runnel.eval.statistics import Array
from runnel.report.tables import Cell, Table

POINTS = "Share of points of the row against the column, both seats together; a draw is half a win."
ROUNDS = "Share of rounds (one seed in all seatings) that the row has won against the column; a draw is half a win."
RATED = "Elo by maximum likelihood over all games, with 95 % intervals of a bootstrap."


def square_table(name: str, title: str, players: Sequence[str], values: Array, note: str = "") -> Table:
    """A number for every two players; what is NaN was not played."""
    rows: list[list[Cell]] = [
        [player, *(None if np.isnan(x) else float(x) for x in row)] for player, row in zip(players, values, strict=True)
    ]
    return Table(name, title, ["", *players], rows, note)


def payoff_table(payoffs: Payoffs, note: str = POINTS) -> Table:
    """Share of points of each player against each other."""
    return square_table("payoffs", "Pay-offs", payoffs.players, payoffs.scores, note)


def rating_table(ratings: Ratings, skills: Sequence[Skill] = (), more: Mapping[str, Mapping[str, Cell]] | None = None) -> Table:
    """The best player first, with its worst case and other columns (`more`, by title and player)."""
    of = {skill.player: skill for skill in skills}
    columns = more or {}
    rows: list[list[Cell]] = []
    for rating in ratings.ranked:
        elo: Cell = Interval(round(rating.value), round(rating.low), round(rating.high))
        row: list[Cell] = [rating.player, float(round(rating.value)) if rating.held else elo, rating.games]
        row += [x for skill in [of.get(rating.player)] if skill is not None for x in (skill.mu, skill.sigma, skill.ordinal)]
        rows.append([*row, *(found.get(rating.player) for found in columns.values())])
    head = ["player", "Elo", "games", *(["mu", "sigma", "mu - 3 sigma"] if skills else []), *columns]
    return Table("ratings", "Ratings", head, rows, RATED)


def worst_cells(payoffs: Payoffs) -> tuple[dict[str, Cell], dict[str, Cell]]:
    """The opponent against whom each player does worst, and its share of points there."""
    found = {player: worst for player in payoffs.players if (worst := payoffs.worst(player)) is not None}
    points: dict[str, Cell] = {
        k: Interval(*(round(x, 3) for x in (w.value.value, w.value.low, w.value.high))) for k, w in found.items()
    }
    return {k: worst.other for k, worst in found.items()}, points
