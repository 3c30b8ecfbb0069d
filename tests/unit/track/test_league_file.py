"""league.jsonl read back: who came and went, every result once, ratings; damaged lines are told and cost nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runnel.core.errors import ConfigError
from runnel.report.league import league_tables, member_table, share
from runnel.track.league import League, LeagueFile, read_league


def frozen(version: int, role: str = "main") -> dict[str, Any]:
    return {"name": f"{role}@{version}", "role": role, "live": False, "version": version, "parent": role, "checksum": "ab"}


MAIN, RIVAL = ({"name": name, "role": name, "live": True} for name in ("main", "exploiter"))


def line(version: int, members: list[dict[str, Any]], main: dict[str, list[int]]) -> dict[str, Any]:
    """A line as a run writes it: rows of live members, four numbers each, and the same apart for two seats."""
    games = {"main": {name: [*result, sum(result)] for name, result in main.items()}}
    if "exploiter" in main:
        games["exploiter"] = {"main": [*main["exploiter"][::-1], sum(main["exploiter"])]}
    by_seat = {a: {b: [x[:3], [0, 0, 0]] for b, x in others.items()} for a, others in games.items()}
    names = [m["name"] for m in members]
    elo = {name: 1000.0 + 10.0 * i * (name != "main@0") for i, name in enumerate(names)}
    return {
        "version": version,
        "members": members,
        "games": games,
        "by_seat": by_seat,
        "elo": elo,
        "picked": dict.fromkeys(names, 1 / len(names)),
    }


LINES = [
    line(1, [MAIN, RIVAL, frozen(0)], {"exploiter": [3, 1, 2], "main@0": [5, 0, 5]}),
    line(40, [MAIN, RIVAL, frozen(0), frozen(40)], {"exploiter": [30, 0, 30], "main@0": [40, 0, 20], "main@40": [0, 0, 0]}),
    line(80, [MAIN, RIVAL, frozen(0), frozen(80)], {"exploiter": [60, 0, 20], "main@0": [80, 10, 10], "main@80": [30, 0, 30]}),
]


def write(folder: Path, lines: list[Any]) -> Path:
    path = folder / "league.jsonl"
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


@pytest.fixture
def league(tmp_path: Path) -> League:
    return read_league(write(tmp_path, LINES))


def test_members_come_and_go(league: League) -> None:
    assert league.version == 80
    assert [(m.name, m.added, m.dropped) for m in league.members] == [
        ("main", 1, None),
        ("exploiter", 1, None),
        ("main@0", 1, None),
        ("main@40", 40, 80),
        ("main@80", 80, None),
    ]
    assert [m.name for m in league.at(40)] == ["main", "exploiter", "main@0", "main@40"]
    gone = league.members[3]
    assert (gone.parent, gone.version, gone.elo, gone.picked) == ("main", 40, 1030.0, None)
    assert league.problems == ()


def test_results_count_once_and_the_first_member_holds_the_scale(league: League) -> None:
    assert league.games["main", "exploiter"] == (60, 0, 20)  # the exploiter tells the same games, turned around
    assert ("exploiter", "main") not in league.games
    payoffs = league.payoffs()
    assert payoffs.players == ("main", "exploiter", "main@0", "main@80")
    assert payoffs.num_games.sum() == 2 * (80 + 100 + 60)
    ratings = league.ratings()
    assert ratings is not None
    assert (ratings["main@0"].value, ratings["main@0"].held) == (1000.0, True)
    assert ratings["main"].value == pytest.approx(ratings["main@80"].value, abs=1.0)
    assert ratings["exploiter"].high < ratings["main"].value


def test_tables_show_members_and_pay_offs_in_each_seat(league: League) -> None:
    members, payoffs, first = league_tables(league, league.ratings())[:3]
    assert [row[0] for row in members.rows] == [m.name for m in league.members]
    assert [row[4] for row in members.rows] == ["live", "live", "in the pool", "dropped at 80", "in the pool"]
    assert payoffs.rows == [["main", None, 0.75, 0.85, 0.5], ["exploiter", 0.25, None, None, None]]
    assert first.rows == payoffs.rows  # the fixture has all games in the first seat
    assert share(league.games, "exploiter", "main") == 0.25
    few = member_table(league, None, most=4)
    assert [row[0] for row in few.rows] == ["main", "exploiter", "main@0", "main@80"]
    assert "1 that were dropped earlier are not shown" in few.note


def test_damaged_lines_are_told_and_the_others_are_read(tmp_path: Path, league: League) -> None:
    strange = {**LINES[2], "games": {"main": {**LINES[2]["games"]["main"], "ghost": [9, 0, 0, 9], "main": [1, 0, 0, 1]}}}
    orphan = {**frozen(80), "parent": "nobody"}
    damaged: list[Any] = [
        LINES[0],
        "{broken",
        {"version": 40},
        {"version": "x", "members": []},
        LINES[1],
        {**strange, "members": [MAIN, RIVAL, frozen(0), orphan, "odd", {"name": 3}]},
        '{"version": 90, "mem',
    ]
    found = read_league(write(tmp_path, damaged))
    assert found.games == league.games
    assert [m.name for m in found.members] == [m.name for m in league.members]
    told = "\n".join(found.problems)
    for text in (
        "line 2 is not readable",
        "a line of version 40 has no list",
        "version 'x'",
        "results of 'ghost'",
        "from 'nobody'",
    ):
        assert text in told
    odd = {
        **LINES[0],
        "games": {"main": {"main@0": [-1, 0, 0], "exploiter": [1e300, 0, 0]}},
        "elo": [],
        "picked": {"main": "x"},
    }
    assert read_league(write(tmp_path, [odd])).payoffs().players == ()


def test_a_run_that_goes_on_cuts_also_a_damaged_file(tmp_path: Path) -> None:
    """A line whose version is a word or nothing must not keep the run from going on."""
    path = write(tmp_path, [{"version": "x"}, LINES[0], {"version": None}, LINES[1], LINES[2], '{"version": 90, "mem'])
    LeagueFile(path).cut(40)
    assert [json.loads(text)["version"] for text in path.read_text().splitlines()] == [1, 40]


def test_a_folder_without_a_league_and_one_without_a_sound_line_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this run has no league.jsonl; leagues are of self-play"):
        read_league(tmp_path / "league.jsonl")
    with pytest.raises(ConfigError, match=r"no line of it can be read .*line 1 is not readable"):
        read_league(write(tmp_path, ["{", "[]"]))
