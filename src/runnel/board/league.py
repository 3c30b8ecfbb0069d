"""What the board shows of a league: members with their ratings over time, and pay-offs as a matrix for each seat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from runnel.core.errors import ConfigError
from runnel.report.league import MOST, share, shown_members, warnings_of
from runnel.track.folder import Row, RunFolder
from runnel.track.league import League, Result, read_league

MOST_POINTS = 400
"""Points of a curve of ratings."""


def league_view(folder: RunFolder) -> Row:
    """Members, matrices and ratings of a run of self-play. Raises a `ConfigError` where there are none."""
    try:
        found = folder.league.lstat()
    except OSError as error:
        raise ConfigError("run", str(folder.path), f"its league.jsonl cannot be read ({error.strerror})") from error
    return _view(folder.league, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=8)
def _view(path: Path, changed: int, size: int) -> Row:
    """As `league_view`. Ratings take half a second, so what was computed is kept until the file changes."""
    league = read_league(path)
    ratings = league.ratings()
    rated = {r.player: asdict(r) for r in ratings.ratings} if ratings is not None else {}
    shown = shown_members(league, MOST)
    num_seats = max((len(seats) for seats in league.by_seat.values()), default=0)
    apart = [{pair: seats[i] for pair, seats in league.by_seat.items() if i < len(seats)} for i in range(num_seats)]
    return {
        "version": league.version,
        "members": [{**asdict(member), "rating": rated.get(member.name)} for member in shown],
        "num_hidden": len(league.members) - len(shown),
        "matrices": [
            _matrix("all seats", league, league.games),
            *(_matrix(f"seat {i}", league, games) for i, games in enumerate(apart)),
        ],
        "history": _history(league),
        "warnings": warnings_of(league, ratings),
    }


def _matrix(title: str, league: League, games: Mapping[tuple[str, str], Result]) -> Row:
    """Share of points of live members against everybody who is there, with the number of games."""
    columns = [m.name for m in league.present]
    rows = [m.name for m in league.present if m.live]
    values = [[share(games, a, b) for b in columns] for a in rows]
    counts = [[sum(games.get((a, b), ()) or games.get((b, a), ())) for b in columns] for a in rows]
    return {"title": title, "rows": rows, "columns": columns, "values": values, "games": counts}


def _history(league: League) -> Row:
    """The ratings of live members at each version that was told: `[[version, rating], ...]` by name."""
    live = [m.name for m in league.members if m.live]
    num = len(league.history)
    kept = np.linspace(0, num - 1, min(num, MOST_POINTS)).round().astype(int)
    lines = [league.history[i] for i in kept.tolist()]
    return {name: [[version, elo[name]] for version, elo in lines if name in elo] for name in live}
