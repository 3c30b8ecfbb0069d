"""A study on the terminal: a line for each trial that is over, once; the time that is left."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from runnel.tune import show
from runnel.tune.folder import Book, StudyFolder, blank_trial
from runnel.tune.settings import TuneConfig, make_setup


def test_lines_and_the_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    folder = StudyFolder(tmp_path / "study")
    folder.make()
    book = Book(folder, make_setup("ppo", {}, TuneConfig(search=("ppo.lr=log(1e-4,1e-2)",))))
    old, new, bad = (blank_trial(n, {"ppo.lr": 10.0 ** -(n + 2)}, [f"trials/{n}"]) for n in range(3))
    book.put([old | {"state": "complete", "value": 5.0}, new])
    out = io.StringIO()
    view = show.View("ppo", 5, live=True, out=out)
    view.show(book)
    assert view.eta_s(book) is None, "what was done before this sitting says nothing of its pace"
    now[0] += 20.0
    book.put([old | {"state": "complete", "value": 5.0}, new | {"state": "complete", "value": 12.5}, bad])
    view.show(book)
    view.show(book)
    assert view.eta_s(book) == pytest.approx(60.0), "one in 20 seconds, three to go"
    book.put([*book.trials[:2], bad | {"state": "failed", "error": "ValueError: no"}])
    view.show(book)
    first, second = out.getvalue().splitlines()
    assert first.split() == ["trial", "1", "complete", "12.5", "best", "12.5", "(trial", "1)", "ppo.lr=0.001"]
    assert "failed" in second
    assert "ValueError: no" in second
