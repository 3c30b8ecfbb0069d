"""What a run is judged by, and the points at which trials are compared."""

from __future__ import annotations

import math
from typing import Any

import pytest

from runnel.core.errors import DataError
from runnel.tune.objective import NoMetric, Points, compared_by, last_value, score

ROWS: list[dict[str, Any]] = [
    {"kind": "update", "progress": 0.25, "metrics": {"return": 1.0, "loss/total": 4.0}},
    {"kind": "eval", "mean": 10.0, "extra": {"length": 7.0}},
    {"kind": "event", "text": "hello"},
    {"kind": "update", "progress": 0.5, "metrics": {"return": 5.0, "loss/total": 2.0}},
    {"kind": "eval", "mean": 40.0, "extra": {"length": 9.0}},
    {"kind": "eval", "mean": 30.0, "extra": {"length": 9.0}},
    {"kind": "eval", "mean": 20.0, "extra": {"length": 8.0}},
]


@pytest.mark.parametrize(
    ("metric", "summary", "maximise", "expected"),
    [
        ("eval", "last", True, 20.0),
        ("eval", "mean", True, 25.0),
        ("eval", "best", True, 30.0),
        ("eval", "best", False, 80.0 / 3),
        ("return", "last", True, 5.0),
        ("return", "best", True, 3.0),
        ("loss/total", "mean", False, 3.0),
        ("length", "last", True, 8.0),
    ],
)
def test_score(metric: str, summary: Any, maximise: bool, expected: float) -> None:
    assert score(ROWS, metric, summary, maximise=maximise) == pytest.approx(expected)


def test_last_value() -> None:
    assert (last_value(ROWS, "return"), last_value(ROWS, "eval"), last_value(ROWS, "bowl")) == (5.0, 20.0, None)


def test_no_number() -> None:
    with pytest.raises(NoMetric, match=r"no 'bowl'; use eval or one of length, loss/total, return"):
        score(ROWS, "bowl", "last", maximise=True)
    with pytest.raises(NoMetric, match="before its first update"):
        score([], "eval", "last", maximise=True)
    with pytest.raises(DataError, match="not finite"):
        score([{"kind": "eval", "mean": math.nan}], "eval", "last", maximise=True)


def points(batch: int, **more: Any) -> list[tuple[int, float]]:
    """The points of a run of 1,000 steps with batches of `batch`."""
    found = Points(compared_by("eval", evaluates=False), total=1000, **more)
    rows = ({"kind": "update", "progress": s / 1000, "metrics": {"return": float(s)}} for s in range(batch, 1001, batch))
    return [p for row in rows if (p := found.take(row)) is not None]


def test_trials_with_other_batches_have_points_at_the_same_steps() -> None:
    assert [step for step, _ in points(10)] == list(range(50, 1001, 50))
    assert [step for step, _ in points(1)] == list(range(50, 1001, 50))
    assert points(400) == [(400, 400.0), (800, 800.0)]
    assert points(30)[:2] == [(50, 60.0), (100, 120.0)]


def test_points_of_a_later_seed_and_of_a_resumed_run() -> None:
    assert points(500, offset=1000) == [(1500, 500.0), (2000, 1000.0)]
    assert points(500, after=500) == [(1000, 1000.0)], "what is known is not told again"


def test_a_run_that_is_evaluated_is_compared_by_its_evaluations() -> None:
    found = Points(compared_by("eval", evaluates=True), total=100)
    assert found.take({"kind": "update", "progress": 0.5, "metrics": {"return": 1.0}}) is None
    assert found.take({"kind": "eval", "mean": 7.0, "extra": {}}) == (50, 7.0)
    assert found.take({"kind": "eval", "mean": 8.0, "extra": {}}) is None, "one point at each share"
