"""Population based training: it finds a schedule, every exchange is on record, and a kill changes nothing."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from test_tune import BOWL, FAST, TOY, runnel, signal_when, study_of
from thread_host import on_threads

import runnel as rl
from runnel import tune
from runnel.track.folder import RunFolder

OPTIONS = {**BOWL, "scheduler": "pbt", "members": 4, "interval": 8}
SPACE = {"rate": "log(1e-3, 1)"}


def told(study: dict[str, Any]) -> tuple[Any, ...]:
    return study["lineage"], [(t["value"], t["params"], t["steps"], t["parent"]) for t in study["trials"]]


def test_a_schedule_beats_every_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bowl wants large steps first and small ones later. The winner is better than every constant rate of a grid, and so
    are its settings on seeds that had no part in finding them."""
    on_threads(monkeypatch)
    constants = [1e-3, 0.1, 0.3, 0.5, 1.0]
    runs = [rl.train(TOY, rate=r, out=str(tmp_path), name=f"c{r}", track=(), **FAST) for r in constants]
    fixed = [run.rows()[-1]["metrics"]["bowl"] for run in runs]
    options = {**OPTIONS, "members": 8, "interval": 4, "test_seeds": 2}
    study = tune.search(TOY, space=SPACE, out=tmp_path / "study", options=options, **FAST)
    best = study.best
    assert best is not None
    assert best["value"] < min(fixed) < max(fixed) / 1e6
    assert best["test"]["mean"] < min(fixed)
    assert best["test"]["seeds"] == [1, 2]
    _check_lineage(study)
    rates = [segment["settings"]["rate"] for segment in best["schedule"]]
    assert len(rates) == 10
    assert rates[-1] < rates[0] / 2, "large steps first, small ones later"
    tested = [
        r["metrics"]["rate"] for r in RunFolder(study.path / best["test"]["runs"][0]).read_rows()[0] if r["kind"] == "update"
    ]
    assert tested == pytest.approx([rate for rate in rates for _ in range(4)]), "the whole schedule is replayed"


def _check_lineage(study: tune.Study) -> None:
    """Each copy says who, from whom, when, and what changed; and the run's own rows show it."""
    data = study.read()
    assert data["lineage"]
    for copy in data["lineage"]:
        child, parent = data["trials"][copy["member"]], data["trials"][copy["parent"]]
        assert dict(map(tuple, parent["steps"]))[copy["step"]] < dict(map(tuple, child["steps"]))[copy["step"]]
        rows = RunFolder(study.path / child["run"]).read_rows()[0]
        assert any("took over from member" in r["text"] for r in rows if r["kind"] == "event")
        used = {r["version"]: r["metrics"]["rate"] for r in rows if r["kind"] == "update"}
        assert used[copy["step"]] == pytest.approx(copy["before"]["rate"])
        assert used[copy["step"] + 1] == pytest.approx(copy["after"]["rate"])
    last = data["lineage"][-1]
    assert (data["trials"][last["member"]]["parent"], data["trials"][last["member"]]["copied_at"]) == (
        last["parent"],
        last["step"],
    )
    assert all([step for step, _ in t["steps"]] == list(range(4, 41, 4)) for t in data["trials"])


def test_killed_and_resumed_is_the_same_population(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of the whole group in the middle of an interval, after the first exchange."""
    on_threads(monkeypatch)
    whole = tune.search(TOY, space=SPACE, out=tmp_path / "whole", options=OPTIONS, **FAST)
    broken = tmp_path / "broken"
    flags = "--scheduler pbt --members 4 --interval 8 --metric bowl --direction minimize --vector.backend serial --workers 2"
    words = ["tune", TOY, "--search", "rate=log(1e-3, 1)", *flags.split(), "--out", str(broken)]

    def exchanged() -> bool:
        reached = [len(t["steps"]) for t in study_of(broken)["trials"]]
        return bool(study_of(broken).get("lineage")) and min(reached) < max(reached)

    signal_when(runnel(*words), signal.SIGKILL, exchanged)
    again = tune.resume(broken)
    assert again.status == "finished"
    assert told(again.read()) == told(whole.read())


def test_a_member_that_fails_takes_over_from_a_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exchange that is planned with a lost member copies into it whatever its rank; if all are lost, the study ends."""
    on_threads(monkeypatch)
    with pytest.raises(rl.RunnelError, match="every member failed; the first: ValueError: the toy is broken"):
        tune.search(TOY, space=SPACE, out=tmp_path / "study", options=OPTIONS, trouble="fail", **FAST)
    assert study_of(tmp_path / "study")["status"] == "failed"
    ill = {**OPTIONS, "interval": 20, "search_seed": 3}  # draws members 0 and 3 ill
    study = tune.search(TOY, space={"rate": "0.2..0.4", "ill": "{true, false}"}, out=tmp_path / "ill", options=ill, **FAST)
    copies = study.read()["lineage"]
    assert [c["member"] for c in copies if c["before"]["ill"]] == [0, 3]
    assert {c["parent"] for c in copies} <= {1, 2}
    assert [t["state"] for t in study.trials] == ["complete"] * 4
    assert [[step for step, _ in t["steps"]] for t in study.trials] == [[40], [20, 40], [20, 40], [40]]
