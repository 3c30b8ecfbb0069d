"""What a match found, as tables: who beat whom in which seat, ratings, and how players do with partners they do not know."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from runnel.eval.aggregates import Interval
from runnel.eval.ratings import Ratings, Skill
from runnel.report.payoffs import POINTS, ROUNDS, payoff_table, rating_table, square_table, worst_cells
from runnel.report.tables import Cell, Table

if TYPE_CHECKING:  # it imports torch, which reports do without
    from runnel.eval.matches import Match


def match_tables(match: Match, ratings: Ratings | None = None, skills: Sequence[Skill] = ()) -> list[Table]:
    """All tables of a match: pay-offs, pairs by seating, and ratings, or, where all always get the same, cross-play."""
    if match.cooperative:
        return [*_returns(match), _cross_play(match)]
    tables = [payoff_table(match.payoffs, ROUNDS if match.duplicate else POINTS), _pairs(match)]
    if ratings is not None:
        other, value = worst_cells(match.payoffs)
        tables.append(rating_table(ratings, skills, {"worst against": other, "points there": value}))
    return tables


def _returns(match: Match) -> list[Table]:
    note = "Mean return of all agents, the row with the column as its partner, all seats together; the diagonal is self-play."
    tables = [square_table("returns", "Mean return", match.players, match.mean_returns(), note)]
    for seat in match.seats:
        note = f"The row sits in {seat}, the column in all other seats."
        tables.append(square_table(f"returns-{seat}", f"Mean return in {seat}", match.players, match.mean_returns(seat), note))
    return tables


def _pairs(match: Match) -> Table:
    """All seats together, and each apart."""
    rows: list[list[Cell]] = []
    for a, b in combinations(match.players, 2):
        if match.seatings(a, b):
            pair = match.between(a, b)
            apart = [_rounded(match.between(a, b, seat=seat).score) for seat in match.seats]
            rows.append([a, b, pair.wins, pair.draws, pair.losses, _rounded(pair.score), *apart, _rounded(pair.mean)])
    head = [
        "player",
        "against",
        "wins",
        "draws",
        "losses",
        "points",
        *(f"points as {seat}" for seat in match.seats),
        "mean return",
    ]
    what = "rounds (one seed in all seatings)" if match.duplicate else "games"
    note = (
        f"Wins, draws, losses and points are those of {what}; points in a seat are those of games. Points: share of them, with "
    )
    note += "Wilson's 95 % interval. Returns are the player's; their intervals resample episodes."
    return Table("pairs", "Pairs", head, rows, note)


def _rounded(x: Interval) -> Interval:
    """Three decimals are more than episodes can tell."""
    return Interval(round(x.value, 3), round(x.low, 3), round(x.high, 3))


def _cross_play(match: Match) -> Table:
    """Self-play, cross-play, the gap, and the worst partner of each."""
    table = match.mean_returns()
    rows: list[list[Cell]] = []
    for i, player in enumerate(match.players):
        others = np.delete(table[i], i)
        alone = None if np.isnan(table[i, i]) else float(table[i, i])
        gap = None if alone is None else match.gap(player)
        worst = match.worst(player)
        rows.append([player, alone, float(others.mean()), gap, worst.other, _rounded(worst.mean)])
    head = ["player", "self-play", "cross-play", "gap", "worst with", "mean return there"]
    return Table("cross-play", "Cross-play", head, rows, "The gap is self-play minus the mean of cross-play.")
