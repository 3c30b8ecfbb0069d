"""`runnel league`: the members of a run of self-play, their ratings, and who beats whom."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from runnel.cli.arguments import add_trust, make_parser
from runnel.cli.tables import show_tables
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject
from runnel.eval.ratings import Ratings
from runnel.report.league import league_tables, warnings_of
from runnel.report.tables import Table, write_csv
from runnel.track.folder import RunFolder
from runnel.track.league import League, read_league

ABOUT = """The league of a run of self-play: members and whence they came, ratings with intervals, pay-offs in each seat.

The numbers are those of training. With --play, everybody plays everybody else, as they are in the newest checkpoint.

  runnel league runs/a-run
  runnel league runs/a-run --play 200 --openings 2 --against random my_bot.py:play
"""


def league(args: list[str]) -> int:
    """Tell of a league; with `--play`, let its members play."""
    parser = make_parser("league", ABOUT)
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--csv", type=Path, default=None, metavar="FOLDER", help="also write each table there as CSV")
    fresh = parser.add_argument_group("fresh games")
    fresh.add_argument("--play", type=int, default=0, metavar="N", help="episodes of each seating of every two members (0)")
    also = "others who play along: random, a run, run:FOLDER@WHICH#POLICY, your own module:function"
    fresh.add_argument("--against", nargs="+", default=[], metavar="PLAYER", help=also)
    fresh.add_argument("--seed", type=int, default=0, help="another number plays other episodes (0)")
    fresh.add_argument("--greedy", action="store_true", help="take the most probable action instead of drawing one")
    fresh.add_argument("--openings", type=int, default=0, metavar="N", help="the first N steps of each episode are random (0)")
    add_trust(parser)
    parsed = parser.parse_args(args)
    if parsed.play:
        return _play(parsed)
    for name in ("against", "seed", "greedy", "openings", "trust"):
        if getattr(parsed, name):
            raise ConfigError(name, getattr(parsed, name), "is of fresh games; add --play N")
    found = read_league(RunFolder.open(parsed.run).league)
    ratings = found.ratings()
    tables, warnings = league_tables(found, ratings, most=sys.maxsize), warnings_of(found, ratings)
    _show(parsed, tables, league_data(found, ratings), warnings)
    return 1 if found.problems else 0


def _show(parsed: argparse.Namespace, tables: list[Table], data: JsonObject, warnings: list[str]) -> None:
    if parsed.csv is not None:
        for table in tables:
            if table.rows:
                write_csv(parsed.csv, table.name, table.csv_rows())
    if parsed.json:
        print(json.dumps({**data, "warnings": warnings}))
        return
    show_tables(tables)
    for text in warnings:
        print(f"runnel: warning: {text}", file=sys.stderr)


def league_data(found: League, ratings: Ratings | None) -> JsonObject:
    """A league as plain data."""
    return {
        "version": found.version,
        "members": [dataclasses.asdict(member) for member in found.members],
        "games": [{"player": a, "other": b, "results": list(result)} for (a, b), result in found.games.items()],
        "by_seat": [{"player": a, "other": b, "seats": list(map(list, seats))} for (a, b), seats in found.by_seat.items()],
        "elo": [dataclasses.asdict(rating) for rating in ratings.ranked] if ratings is not None else [],
    }


def _play(parsed: argparse.Namespace) -> int:
    """Fresh games between all members of the newest checkpoint."""
    from runnel.cli.matching import match_data, played, rated
    from runnel.eval.ratings import START
    from runnel.report.matches import match_tables
    from runnel.run.league import league_members
    from runnel.run.matching import names_of

    if parsed.play < 0:
        raise ConfigError("play", parsed.play, "play at least one episode, or none (0)")
    members = league_members(parsed.run, greedy=parsed.greedy, trust=parsed.trust)
    names = names_of(parsed.against)
    others = dict(zip(names, parsed.against, strict=True))
    if twice := [name for name in names if name in members.players or names.count(name) > 1]:
        raise ConfigError("against", twice[0], "is the name of another player already; give its folder another name")
    everybody = {**members.players, **others}
    found = played(everybody, members.env, parsed, episodes=parsed.play, kwargs=members.env_kwargs)
    ratings, warnings = rated(found, {members.first: START} if members.first else {})
    data = {"version": members.version, **match_data(found, ratings, [])}
    if not parsed.json:
        print(
            f"{found.env}: {len(members.players)} members at version {members.version:,}; {found.episodes} episodes a seating"
        )
    _show(parsed, match_tables(found, ratings), data, warnings)
    return 0
