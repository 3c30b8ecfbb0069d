"""A league as tables: its members with their ratings and where they come from, and who beat whom, in all seats and in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from runnel.core.errors import ConfigError
from runnel.eval.aggregates import Interval
from runnel.eval.ratings import Ratings
from runnel.report.tables import Cell, Table
from runnel.track.folder import RunFolder
from runnel.track.league import League, LeagueMember, Result, read_league

LIVE_NOTE = (
    "Share of points of live members; a draw is half a win. Live members changed while they played, so this counts all their "
    "versions; `runnel league RUN --play N` lets everybody play as they are now."
)
MOST = 60
"""Members of a page's tables; the newest and those who are there are kept."""


def league_tables(league: League, ratings: Ratings | None, *, most: int = MOST) -> list[Table]:
    """Members, pay-offs over all seats, and those of each seat."""
    num_seats = max((len(seats) for seats in league.by_seat.values()), default=0)
    seats = [{pair: found[i] for pair, found in league.by_seat.items() if i < len(found)} for i in range(num_seats)]
    return [
        member_table(league, ratings, most=most),
        _payoffs("payoffs", "Pay-offs", league, league.games, LIVE_NOTE),
        *(_payoffs(f"payoffs-seat-{i}", f"Pay-offs in seat {i}", league, games) for i, games in enumerate(seats)),
    ]


def league_of(folder: RunFolder) -> tuple[list[Table], list[str]]:
    """The tables of a run's league and what should be known of it; both empty for a run without one."""
    if not folder.league.exists():
        return [], []
    try:
        found = read_league(folder.league)
    except ConfigError as error:
        return [], [str(error)]
    ratings = found.ratings()
    tables = league_tables(found, ratings)
    return [replace(table, name=f"league-{table.name}") for table in tables], warnings_of(found, ratings)


def shown_members(league: League, most: int) -> list[LeagueMember]:
    """All members, or of very many those who are there and the newest of the others."""
    gone = [member for member in league.members if member.dropped is not None]
    hidden = {member.name for member in gone[: max(0, len(league.members) - most)]}
    return [member for member in league.members if member.name not in hidden]


def member_table(league: League, ratings: Ratings | None, *, most: int = MOST) -> Table:
    """Who is in the league, since when, whence, how strong, and how often it is met."""
    found = {rating.player: rating for rating in ratings.ratings} if ratings is not None else {}
    rows: list[list[Cell]] = []
    shown = shown_members(league, most)
    for m in shown:
        rating = found.get(m.name)
        there = "live" if m.live else "in the pool" if m.dropped is None else f"dropped at {m.dropped:,}"
        elo: Cell = None
        if rating is not None:
            elo = float(round(rating.value)) if rating.held else Interval(*map(round, (rating.value, rating.low, rating.high)))
        rows.append([m.name, m.role, m.parent or "–", m.added, there, elo, _round(m.elo), _games(league, m.name), m.picked])
    head = ["member", "role", "from", "added at", "now", "Elo", "Elo of the run", "games", "picked"]
    hidden = len(league.members) - len(shown)
    note = (
        "Elo: fitted to all games of those who are there, with its 95 % interval; the run's own is kept game by game. Picked: "
        "the probability that main meets it next."
    )
    note += f" {hidden:,} that were dropped earlier are not shown." if hidden else ""
    return Table("members", f"Members at version {league.version:,}", head, rows, note)


def _round(x: float | None) -> float | None:
    return None if x is None else float(round(x))


def _games(league: League, name: str) -> int:
    return sum(sum(result) for pair, result in league.games.items() if name in pair)


def _payoffs(name: str, title: str, league: League, games: Mapping[tuple[str, str], Result], note: str = "") -> Table:
    """Live members against everybody who is there."""
    there = [m.name for m in league.present]
    live = [m.name for m in league.present if m.live]
    rows: list[list[Cell]] = [[a, *(share(games, a, b) for b in there)] for a in live]
    return Table(name, title, ["", *there], rows if any(map(_has_number, rows)) else [], note)


def _has_number(row: Sequence[Cell]) -> bool:
    return any(isinstance(x, float) for x in row)


def share(games: Mapping[tuple[str, str], Result], a: str, b: str) -> float | None:
    """Share of points of `a` against `b`; None where they have not met."""
    result = games.get((a, b)) or tuple(reversed(games.get((b, a), ())))
    total = sum(result)
    return (result[0] + 0.5 * result[1]) / total if total else None


def warnings_of(league: League, ratings: Ratings | None) -> list[str]:
    """What should be known of a league, in words."""
    return list(chain(league.problems, ratings.warnings if ratings is not None else ()))
