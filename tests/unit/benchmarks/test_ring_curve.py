"""The ring curve's arithmetic and its page; and that the asynchronous comparison is put together as it says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.classic.appo_async.run import ENTRY
from benchmarks.classic.ring.run import CURVES, draw, markdown, summarise


def points(where: str = "serial") -> list[dict[str, Any]]:
    name = next(c.name for c in CURVES if c.where == where)
    rates = {1: (900.0, 1000.0, 1100.0), 4: (3500.0, 3400.0, 3600.0)}
    return [
        {"name": name, "step_ms": 0.2, "where": where, "ring": n, "runs": [{"steps_per_s": r, "cores": 1.5} for r in rate]}
        for n, rate in rates.items()
    ]


def test_gain_and_bound_by_hand() -> None:
    """1,000 steps/s with a ring of one are 1 ms a step: 0.2 ms of environment, 0.8 ms of waiting; at most 5 times as fast."""
    one, four = summarise(points())
    assert one["gain"] == pytest.approx(1.0)
    assert four["gain"] == pytest.approx(3.5)
    assert four["response_ms"] == pytest.approx(0.8)
    assert four["bound"] == pytest.approx(5.0)
    assert summarise(points("processes"))[1]["bound"] is None


def test_a_point_that_failed_has_no_gain() -> None:
    rows = points()
    rows[1]["runs"] = [{"error": "no answer"}] * 3
    assert summarise(rows)[1]["gain"] is None


def test_the_page_and_the_plot(tmp_path: Path) -> None:
    machine = {"cores": 2, "cpu": "a", "memory_gib": 1}
    result = {"made": "today", "machine": machine, "disturbed": True, "points": summarise(points())}
    assert "Not a result" in markdown(result)
    assert "3.50" in markdown(result)
    draw(result, tmp_path / "ring.svg")
    assert "SRL, Pong" in (tmp_path / "ring.svg").read_text()


def test_appo_stands_first_and_every_script_exists() -> None:
    assert ENTRY.sides[0].name == "APPO"
    assert all(side.script.is_file() for side in ENTRY.sides)
    assert all((m.must, m.aim) == (1.3, 1.7) for m in ENTRY.measures)
