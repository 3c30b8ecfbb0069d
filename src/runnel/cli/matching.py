"""`runnel eval` with two players or more: a match, or everybody against everybody."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from runnel.cli.reading import paths_of
from runnel.cli.tables import show_tables
from runnel.core.contracts.evaluation import Progress
from runnel.core.errors import ConfigError
from runnel.core.resolve import is_reference
from runnel.core.routes import STORED
from runnel.core.state import JsonObject
from runnel.eval.matches import Match
from runnel.eval.players import RANDOM
from runnel.eval.ratings import START, Ratings, Skill, fit_elo, rate_skill
from runnel.report.matches import match_tables
from runnel.report.tables import write_csv
from runnel.run.matching import match, names_of
from runnel.run.players import is_team_run

OF_MATCHES = ("seats", "greedy", "openings", "cross_play", "duplicate", "anchor", "openskill", "csv")
"""Flags that only a match has."""
OF_RATINGS = ("anchor", "openskill")
"""Those of them that are of ratings, which partners have not."""
EITHER = ("cross_play", "duplicate")
"""Those of them that also say no."""


def is_given(parsed: argparse.Namespace, name: str) -> bool:
    """Whether a flag was given."""
    value = getattr(parsed, name)
    return value not in ([], 0, False, None) or (name in EITHER and value is False)


def add_match_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of matches to the parser of `runnel eval`."""
    found = parser.add_argument_group("with two players or more")
    found.add_argument("--seats", nargs="+", default=[], metavar="PATTERN", help="the agents of each seat (by their names)")
    found.add_argument("--greedy", action="store_true", help="take the most probable action instead of drawing one")
    found.add_argument("--openings", type=int, default=0, metavar="N", help="the first N steps of each episode are random (0)")
    either = argparse.BooleanOptionalAction
    found.add_argument("--cross-play", action=either, help="partners: mean returns count (where all get the same)")
    found.add_argument("--duplicate", action=either, help="a round in all seatings is won (where seats differ)")
    found.add_argument("--anchor", action="append", default=[], metavar="NAME=ELO", help="hold a rating (random at 1000)")
    found.add_argument("--openskill", action="store_true", help="also ratings by openskill")
    found.add_argument("--csv", type=Path, default=None, metavar="FOLDER", help="also write each table there as CSV")


def players_in(arguments: Sequence[str], *, trust: bool) -> list[str]:
    """The players that arguments name, if these are to play a match; empty if each run is to be measured by itself."""
    players = [
        name for argument in arguments for name in ([argument] if _is_player(argument) else map(str, paths_of([argument])))
    ]
    others = any(map(_is_player, arguments))
    if others and len(players) == 1:
        raise ConfigError(
            "runs", players[0], "a match needs two players; name another one, or a run's folder alone to measure it"
        )
    return players if others or (len(players) > 1 and is_team_run(players[0], trust=trust)) else []


def _is_player(argument: str) -> bool:
    """Whether this is a player that is no run's folder."""
    if Path(argument).exists():
        return False
    return argument == RANDOM or argument.startswith(STORED) or is_reference(argument)


def play(players: Sequence[str], parsed: argparse.Namespace) -> int:
    """Play a match, and tell what came of it."""
    if len(players) < 2:
        raise ConfigError("runs", list(players), "a match needs two players")
    for name, least in (("samples", parsed.samples), ("pass_k", parsed.pass_k), ("env_wrapper", parsed.env_wrapper or None)):
        if least is not None:
            raise ConfigError(name, least, "is not for matches; leave it out")
    anchors, of_ratings = _anchors(parsed.anchor, names_of(players)), [name for name in OF_RATINGS if is_given(parsed, name)]
    if parsed.cross_play and of_ratings:
        fix = "is of opponents: partners have no ratings; leave it out, or leave out --cross-play"
        raise ConfigError(of_ratings[0], getattr(parsed, of_ratings[0]), fix)
    pairing = {name: getattr(parsed, name) for name in ("seats", "cross_play", "duplicate", "best")}
    found = played(players, parsed.env, parsed, episodes=parsed.episodes, kwargs=parsed.env_kwargs, **pairing)
    ratings, warnings = rated(found, anchors)
    skills = rate_skill(found.rounds()) if ratings is not None and parsed.openskill else []
    if of_ratings and ratings is None:
        flags = " and ".join(f"--{name}" for name in of_ratings)
        warnings.append(f"partners have no ratings, so {flags} say nothing here; --no-cross-play makes opponents of them")
    tables = match_tables(found, ratings, skills)
    if parsed.csv is not None:
        for table in tables:
            write_csv(parsed.csv, table.name, table.csv_rows())
    if parsed.json:
        print(json.dumps({**match_data(found, ratings, skills), "warnings": warnings}))
        return 0
    who = [f"{name} at version {found.versions[name]:,}" if name in found.versions else name for name in found.players]
    print(f"{found.env}: {', '.join(who)}; {found.episodes} episodes in each seating, seed {found.seed}")
    show_tables(tables)
    for text in warnings:
        print(f"runnel: warning: {text}", file=sys.stderr)
    return 0


def played(
    players: Sequence[object] | Mapping[str, object], env: str | None, parsed: argparse.Namespace, **pairing: Any
) -> Match:
    """The match of `players`, by the flags of all commands that play one; `pairing` are further arguments of `rl.match`."""
    flags = {name: getattr(parsed, name) for name in ("seed", "greedy", "openings", "trust")}
    with _watched() as progress:
        return match(players, env, progress=progress, **flags, **pairing)


def rated(found: Match, anchors: Mapping[str, float]) -> tuple[Ratings | None, list[str]]:
    """The ratings of a match, which partners have not, and what should be known of it."""
    ratings = None if found.cooperative else fit_elo(found.payoffs, anchors=anchors)
    return ratings, [*found.warnings(), *(ratings.warnings if ratings is not None else ())]


@contextmanager
def _watched() -> Iterator[Progress]:
    """Say on a terminal which seating is played."""
    with Console(stderr=True).status("playing") as status:

        def progress(done: int, total: int) -> None:
            status.update(f"playing seating {done + 1} of {total}")

        yield progress


def _anchors(given: Sequence[str], players: Sequence[str]) -> dict[str, float]:
    """The ratings that are held: those that were asked for, else random's."""
    found = {}
    for text in given:
        name, equals, rating = text.rpartition("=")
        try:
            found[name] = float(rating)
        except ValueError:
            equals = ""
        if not equals:
            raise ConfigError("anchor", text, "write NAME=ELO, for example random=1000")
        if name not in players:
            raise ConfigError("anchor", text, f"no player has this name; they are {', '.join(players)}")
        if not math.isfinite(found[name]):
            raise ConfigError("anchor", text, "give a finite rating")
    return found or ({RANDOM: START} if RANDOM in players else {})


def match_data(found: Match, ratings: Ratings | None, skills: Sequence[Skill]) -> JsonObject:
    """A match as plain data."""
    data: dict[str, Any] = {
        "env": found.env,
        "players": list(found.players),
        "versions": dict(found.versions),
        "seats": {seat: list(agents) for seat, agents in found.seats.items()},
        "episodes": found.episodes,
        "seed": found.seed,
        "cooperative": found.cooperative,
        "duplicate": found.duplicate,
        "pairs": [
            _pair_data(found, a, b) for i, a in enumerate(found.players) for b in found.players[i:] if found.seatings(a, b)
        ],
        "worst": {a: dataclasses.asdict(found.worst(a)) for a in found.players},
    }
    if ratings is not None:
        data["elo"] = [dataclasses.asdict(rating) for rating in ratings.ranked]
    else:
        data["gap"] = {a: found.gap(a) for a in found.players}
    return data | (
        {"openskill": [dataclasses.asdict(skill) | {"ordinal": skill.ordinal} for skill in skills]} if skills else {}
    )


def _pair_data(found: Match, a: str, b: str) -> JsonObject:
    apart = []
    for games in found.seatings(a, b):
        one = dataclasses.asdict(found.between(a, b, seating=games.players))
        apart.append({"seats": dict(zip(found.seats, games.players, strict=True)), **one, "returns": games.returns.tolist()})
    return {**dataclasses.asdict(found.between(a, b)), "apart": apart}
