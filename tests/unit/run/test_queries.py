"""Queries for stored policies: what answers them, and what is said where nothing does."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.errors import ConfigError
from runnel.core.stored_policy import StoredPolicy
from runnel.run.best import BestParams
from runnel.run.checkpoint import Checkpoints, write_parts
from runnel.run.queries import Condition, KnownVersion, answer, known_versions, parse_query, runs_in
from runnel.run.stored import choose, pin_teams
from runnel.track.folder import RunFolder

RUN, OTHER = RunFolder("runs/a"), RunFolder("runs/b")


def version(number: int, run: RunFolder = RUN, *, tags: tuple[str, ...] = (), **numbers: float) -> KnownVersion:
    return KnownVersion(run, number, {"version": number, **numbers}, frozenset(tags), written=float(number))


def test_conditions() -> None:
    assert parse_query("win_rate=0.6..0.8,return/red=..3 , tag=a-b") == [
        Condition("win_rate", 0.6, 0.8),
        Condition("return/red", high=3.0),
        Condition("tag", tag="a-b"),
    ]
    assert parse_query("steps=1e3")[0] == Condition("steps", 1000.0, 1000.0)


@pytest.mark.parametrize("text", ["win_rate", "win_rate=", "a=x..2", "a=1...2", "a=..", "a=1..2,", "a=nan", "a=3..2", "=1"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"teams = .*\[.*\].* is not understood; in brackets stand|holds for nothing"):
        parse_query(text)


def test_the_newest_or_the_best_of_those_that_answer() -> None:
    known = [version(1, win_rate=0.5, **{"return": 3.0}), version(2, win_rate=0.7, **{"return": 5.0})]
    known += [version(3, win_rate=0.65, **{"return": 4.0}), version(4, win_rate=0.9, **{"return": 9.0}), version(5)]
    assert answer("q", "win_rate=0.6..0.8", known, best=False).version == 3
    assert answer("q", "win_rate=0.6..0.8", known, best=True).version == 2
    assert answer("q", "win_rate=0.6..0.8, version=..2", known, best=False).version == 2
    assert answer("q", "", known, best=False).version == 5
    assert answer("q", "", known, best=True).version == 4


def test_of_several_runs_the_one_that_has_written_an_answer_last_and_tags_choose_among_runs() -> None:
    known = [version(900, OTHER, win_rate=0.7), version(3, win_rate=0.7), version(2, tags=("strong",), win_rate=0.7)]
    known[0] = KnownVersion(OTHER, 900, known[0].numbers, written=1.0)
    assert (answer("q", "win_rate=0.7", known, best=False).run, answer("q", "win_rate=0.7", known, best=False).version) == (
        RUN,
        3,
    )
    assert answer("q", "tag=strong", known, best=False).version == 2


def test_without_an_answer_the_nearest_are_named() -> None:
    known = [version(1, win_rate=0.1), version(2, win_rate=0.55), version(3, win_rate=0.95), version(4, win_rate=0.3)]
    text = (
        r"no kept version answers this; the nearest are version 2 of runs/a \(win_rate 0.55\); "
        r"version 3 of runs/a \(win_rate 0.95\); version 4"
    )
    with pytest.raises(ConfigError, match=text):
        answer("run:runs/a@newest[win_rate=0.6..0.8]", "win_rate=0.6..0.8", known, best=False)
    with pytest.raises(ConfigError, match="no kept version has a 'elo'; what is known of them: version, win_rate"):
        answer("q", "elo=1..", known, best=False)
    with pytest.raises(ConfigError, match="no version is kept there"):
        answer("q", "elo=1..", [], best=False)


@given(
    st.lists(st.tuples(st.floats(-2, 2), st.booleans()), min_size=1, max_size=8),
    st.floats(-2, 2),
    st.floats(0, 2),
    st.booleans(),
)
def test_an_answer_has_what_was_asked_and_nobody_who_has_it_is_newer(
    rates: list[tuple[float, bool]], low: float, width: float, tagged: bool
) -> None:
    known = [version(i, tags=("x",) * tag, rate=rate) for i, (rate, tag) in enumerate(rates)]
    right = [i for i, (rate, tag) in enumerate(rates) if low <= rate <= low + width and (tag or not tagged)]
    text = f"rate={low!r}..{low + width!r}" + ", tag=x" * tagged
    if right:
        assert answer("q", text, known, best=False).version == max(right)
    else:
        with pytest.raises(ConfigError, match="no kept version answers this"):
            answer("q", text, known, best=False)


# ------------------------------------------------------------------------------------------------------- folders of runs
def make_run(
    path: Path, evals: dict[int, dict[str, Any]], *, kept: tuple[int, ...], tags: list[str], when: float = 1.0
) -> RunFolder:
    """A run's folder with parameters of two policies and rows of evaluations."""
    run = RunFolder(path)
    path.mkdir(parents=True)
    run.config.write_text(json.dumps({"tags": tags}))
    rows = [{"kind": "eval", "version": v, "steps": 10 * v, **row} for v, row in evals.items()]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in [{"kind": "update", "version": 1}, *rows]))
    checkpoints = Checkpoints(run.checkpoints, keep=9)
    for number in kept:
        folder = checkpoints.begin(number)
        files = write_parts(folder, {"params": {"red/w": torch.tensor([number]), "blue/w": torch.zeros(1)}})
        done = checkpoints.finish(
            folder, {"version": number, "steps": 0, "tokens": 0, "epoch": 0, "whole": True, "files": files}
        )
        os.utime(done / "manifest.json", (when + number, when + number))
    return run


def test_numbers_of_a_policy_come_first_and_only_kept_versions_count(tmp_path: Path) -> None:
    extra = {"return/red": 2.0, "return/blue": 4.0, "win_rate/red": 0.25, "odd": None}
    run = make_run(tmp_path / "a", {2: {"mean": 3.0, "num": 5, "extra": extra}, 3: {"mean": 9.0}}, kept=(2, 4), tags=["x"])
    two, four = known_versions(run, "red")
    assert (two.version, four.version) == (2, 4)
    assert two.numbers["return"] == 2.0
    assert two.numbers["win_rate"] == 0.25
    assert (two.numbers["steps"], two.numbers["episodes"]) == (20.0, 5.0)
    assert four.numbers == {"version": 4.0}
    assert two.tags == {"x"}
    assert known_versions(run)[0].numbers["return"] == 3.0
    assert math.isinf(four.misses(Condition("return", 0.0, 1.0)))
    BestParams(run.best).offer(3, [9.0], {"red/w": torch.zeros(1)})
    assert [v.version for v in known_versions(run, "red")] == [2, 3, 4]


def test_a_policy_is_chosen_among_runs_and_what_was_chosen_is_written_down(tmp_path: Path) -> None:
    evals = {v: {"mean": float(v), "extra": {"win_rate/red": v / 10}} for v in (1, 2, 3)}
    make_run(tmp_path / "a", evals, kept=(1, 2, 3), tags=["league"], when=100.0)
    make_run(tmp_path / "b", evals, kept=(1, 3), tags=[], when=200.0)
    (tmp_path / "no-run").mkdir()
    chosen = choose(StoredPolicy(f"{tmp_path}/*", query="win_rate=..0.25", member="red"))
    assert (Path(chosen.folder).name, chosen.which, chosen.member, chosen.query) == ("b", "1", "red", "")
    (entry,), told = pin_teams([f".*=run:{tmp_path}/*@best[win_rate=..0.25, tag=league]#red: deterministic"])
    folder = (tmp_path / "a").resolve()
    assert entry.startswith(f".*=run:{folder}@2+")
    assert entry.endswith("#red: deterministic")
    assert told == [f"agents '.*' follow version 2 of {folder}, the best with win_rate=..0.25, tag=league, which never changes"]
    assert pin_teams([entry])[0] == (entry,)
    assert choose(StoredPolicy(f"{tmp_path}/*", which="3", member="red")).folder == str((tmp_path / "b").resolve())
    with pytest.raises(ConfigError, match="no folder of a run has such a name"):
        runs_in(f"{tmp_path}/*-run")
