"""league.jsonl: the pool of a run of self-play, one state of it a line: members, results, ratings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runnel.core.errors import ConfigError, DataError
from runnel.eval.payoffs import Payoffs
from runnel.eval.ratings import NUM_RESAMPLES, START, Ratings, fit_elo
from runnel.track.files import open_append, replace_file
from runnel.track.folder import Row, read_rows
from runnel.track.history import is_number
from runnel.track.sinks.jsonl import line_of


class LeagueFile:
    """Rows are only appended. A run that goes on from a checkpoint writes those behind it again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, row: Row) -> None:
        """Append a row."""
        with open_append(self.path) as file:
            file.write(line_of(row))

    def cut(self, version: int) -> None:
        """Remove rows that are newer than `version`, at which the run is resumed, half a line that a kill has left, and rows
        whose version is none."""
        if self.path.is_file():
            rows = [row for row in read_rows(self.path)[0] if is_number(at := row.get("version")) and at <= version]
            replace_file(self.path, b"".join(map(line_of, rows)))


@dataclass(frozen=True)
class LeagueMember:
    """A member of a league. A live one (`version` None) goes on learning; the others are frozen copies of it."""

    name: str
    role: str
    live: bool
    version: int | None
    parent: str
    checksum: str
    added: int
    """The version of the run with which it first stands in the file."""
    dropped: int | None = None
    """The version with which it stands there no more; None while it does."""
    elo: float | None = None
    """The rating that the run keeps itself, the last that was told."""
    picked: float | None = None
    """How probable it is that the main policy meets it next; None for who is not in the pool any more."""


MANY, FEWER, MOST_RATED = 32, 200, 128
"""With more members, intervals are of fewer resamples; with even more, no ratings are fitted."""
MOST_GAMES = 1 << 40
"""More games than that are no result: anybody may have written the file."""
Result = tuple[int, int, int]
"""Wins, draws, losses."""


@dataclass(frozen=True)
class League:
    """What league.jsonl says: who was there when, and all results since the start, the last that were told of each pair."""

    version: int
    members: tuple[LeagueMember, ...]
    """In the order in which they came."""
    games: Mapping[tuple[str, str], Result]
    """Of each pair once, as the first of it sees them."""
    by_seat: Mapping[tuple[str, str], tuple[Result, ...]]
    history: tuple[tuple[int, Mapping[str, float]], ...] = ()
    """The ratings that were told, with the version of each line."""
    problems: tuple[str, ...] = ()
    """What is wrong with the file, in words. The rest of it is read all the same."""

    @property
    def present(self) -> list[LeagueMember]:
        """Who is there now."""
        return [member for member in self.members if member.dropped is None]

    def at(self, version: int) -> list[LeagueMember]:
        """Who was there at a version of the run."""
        return [m for m in self.members if m.added <= version and (m.dropped is None or version < m.dropped)]

    def payoffs(self) -> Payoffs:
        """The results of those who are there now and have met."""
        names = [member.name for member in self.present]
        games = [(a, b, result) for (a, b), result in self.games.items() if a in names and b in names and any(result)]
        met = {name for a, b, _ in games for name in (a, b)}
        return Payoffs.of([name for name in names if name in met], games)

    def ratings(self) -> Ratings | None:
        """Elo of those, fitted to all their games; the first frozen member keeps the rating that the run gives it. None where
        nobody has met, and of more members than can be fitted while somebody waits."""
        payoffs = self.payoffs()
        if not 0 < len(payoffs.players) <= MOST_RATED:
            return None
        frozen = [m for m in self.present if not m.live and m.name in payoffs.players]
        anchors = {frozen[0].name: START if frozen[0].elo is None else frozen[0].elo} if frozen else {}
        try:
            return fit_elo(payoffs, anchors=anchors, num_resamples=NUM_RESAMPLES if len(payoffs.players) <= MANY else FEWER)
        except DataError:  # two groups that never met
            return None


def read_league(path: Path) -> League:
    """Read league.jsonl. Raises a `ConfigError` where there is none, or no line of it can be read."""
    if not path.exists():
        fix = "this run has no league.jsonl; leagues are of self-play (runnel train selfplay)"
        raise ConfigError("run", str(path.parent), fix)
    rows, problems = read_rows(path)
    read = [(row, _members_in(row)) for row in rows]
    problems += [
        f"{path.name}: a line of version {row.get('version')!r} has no list of members; skipped" for row, m in read if m is None
    ]
    sound = [(row, members) for row, members in read if members is not None]
    if not sound:
        raise ConfigError("run", str(path), f"no line of it can be read ({'; '.join(problems) or 'it is empty'}); restore it")
    members, games, by_seat, history = _followed(sound)
    strange = dict.fromkeys(name for pair in games for name in pair if name not in members)
    problems += [f"{path.name} has results of {name!r}, which is no member in any line; they are left out" for name in strange]
    lost = [m for m in members.values() if m.parent and m.parent not in members]
    problems += [f"{path.name} says that {m.name} comes from {m.parent!r}, which is no member in any line" for m in lost]
    known = {pair: result for pair, result in games.items() if not {*pair} & strange.keys()}
    return League(
        version=max(int(row["version"]) for row, _ in sound),
        members=tuple(members.values()),
        games=known,
        by_seat={pair: seats for pair, seats in by_seat.items() if pair in known},
        history=tuple(history),
        problems=tuple(problems),
    )


def _members_in(row: Row) -> list[Row] | None:
    """The members of a line; None if the line is not one that a run writes."""
    found = row.get("members")
    if not is_number(row.get("version")) or not isinstance(found, list):
        return None
    return [m for m in found if isinstance(m, dict) and isinstance(m.get("name"), str)]


def _followed(
    rows: Sequence[tuple[Row, list[Row]]],
) -> tuple[dict[str, LeagueMember], dict[tuple[str, str], Result], dict[tuple[str, str], tuple[Result, ...]], list[Any]]:
    """The members as they came and went, the last results of each pair, and the ratings of all lines."""
    members: dict[str, LeagueMember] = {}
    games: dict[tuple[str, str], Result] = {}
    by_seat: dict[tuple[str, str], tuple[Result, ...]] = {}
    history = []
    for row, told in rows:
        version, elo, picked = int(row["version"]), _numbers(row.get("elo")), _numbers(row.get("picked"))
        there = {m["name"]: m for m in told}
        for name, m in there.items():
            known = members.get(name) or _member(m, version)
            members[name] = replace(known, elo=elo.get(name), picked=picked.get(name), dropped=None)
        for name, old in members.items():
            if name not in there and old.dropped is None:
                members[name] = replace(old, dropped=version, picked=None)
        for pair, result in _pairs(row.get("games")):
            games |= {} if pair[::-1] in games or (found := _result(result)) is None else {pair: found}
        for pair, seats in _pairs(row.get("by_seat")):
            apart = tuple(one for x in seats if (one := _result(x)) is not None) if isinstance(seats, list) else ()
            if pair[::-1] not in by_seat and apart and len(apart) == len(seats):
                by_seat[pair] = apart
        history.append((version, elo))
    return members, games, by_seat, history


def _member(m: Row, version: int) -> LeagueMember:
    own = m.get("version")
    role, parent, checksum = (str(m.get(key) or "") for key in ("role", "parent", "checksum"))
    return LeagueMember(m["name"], role, bool(m.get("live")), int(own) if is_number(own) else None, parent, checksum, version)


def _numbers(found: object) -> dict[str, float]:
    return {str(k): float(x) for k, x in found.items() if is_number(x)} if isinstance(found, dict) else {}


def _pairs(found: object) -> list[tuple[tuple[str, str], Any]]:
    """The entries of a table by row and column."""
    rows = found.items() if isinstance(found, dict) else ()
    return [((str(a), str(b)), x) for a, others in rows if isinstance(others, dict) for b, x in others.items() if a != b]


def _result(found: object) -> Result | None:
    """Wins, draws and losses, which may be followed by their sum."""
    if not isinstance(found, list) or len(found) < 3 or not all(is_number(x) and 0 <= x <= MOST_GAMES for x in found[:3]):
        return None
    return int(found[0]), int(found[1]), int(found[2])
