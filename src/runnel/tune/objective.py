"""The objective of a trial: which number of a run's rows counts, and how a run's numbers become one.

`--metric eval` is the mean return of evaluations, `return` that of recent training episodes, and any other word the name of a
number that an update logs (`loss/total`) or an evaluation adds. A run's last number counts, or by `--summary` the best moving
mean of three, or the mean over the run, which rewards learning early.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from runnel.core.errors import DataError

Summary = Literal["last", "best", "mean"]
Row = Mapping[str, Any]
SMOOTH = 3
REPORTS = 20
"""Points of a run at which it is compared with others; each trial has the same, whatever its batches are."""


def value_in(row: Row, metric: str) -> float | None:
    """The number of `metric` in a row, or None if this row has none."""
    if metric == "eval":
        return float(row["mean"]) if row["kind"] == "eval" else None
    numbers = row.get("metrics", {}) if row["kind"] == "update" else row.get("extra", {}) if row["kind"] == "eval" else {}
    return float(numbers[metric]) if metric in numbers else None


def score(rows: Sequence[Row], metric: str, summary: Summary, *, maximise: bool) -> float:
    """One number for a run; a `NoMetric` if it has none, a `DataError` if it is not finite.

    >>> rows = [{"kind": "eval", "mean": m} for m in (1.0, 9.0, 2.0, 3.0)]
    >>> [score(rows, "eval", s, maximise=True) for s in ("last", "best", "mean")]
    [3.0, 4.666666666666667, 3.75]
    """
    found = [v for row in rows if (v := value_in(row, metric)) is not None]
    if not found:
        raise NoMetric(f"the run has no {metric!r}; {_known(rows)}")
    if not all(math.isfinite(v) for v in found):
        raise DataError(f"{metric!r} is not finite")
    if summary == "last":
        return found[-1]
    if summary == "mean":
        return sum(found) / len(found)
    width = min(SMOOTH, len(found))
    smooth = [sum(found[i : i + width]) / width for i in range(len(found) - width + 1)]
    return max(smooth) if maximise else min(smooth)


def compared_by(metric: str, *, evaluates: bool) -> str:
    """The metric of runs that still train: `metric`, or training returns if a run is only evaluated at its end."""
    return metric if evaluates or metric != "eval" else "return"


def last_value(rows: Sequence[Row], metric: str) -> float | None:
    """The last number of `metric`."""
    return next((v for row in reversed(rows) if (v := value_in(row, metric)) is not None), None)


def _known(rows: Sequence[Row]) -> str:
    names = {name for row in rows for name in (*row.get("metrics", {}), *row.get("extra", {}))}
    return f"use eval or one of {', '.join(sorted(names))}" if names else "it ended before its first update"


class NoMetric(DataError):
    """A run was trained to its end and never logged the metric. No other trial will either."""


class Points:
    """Turns the rows of a training run into points at equal steps of its budget."""

    def __init__(self, metric: str, *, total: int, offset: int = 0, after: int = 0) -> None:
        """`offset` is the budget of the trial's earlier runs, `after` the step of the last point that was reported."""
        self._metric = metric
        self._total, self._offset, self._seen, self._progress = total, offset, after, 0.0

    def take(self, row: Row) -> tuple[int, float] | None:
        """The point that this row completes: (step, value), or None."""
        self._progress = row.get("progress", self._progress)
        value = value_in(row, self._metric)
        share = int(self._progress * REPORTS + 1e-9)
        step = self._offset + share * self._total // REPORTS
        if value is None or not math.isfinite(value) or share == 0 or step <= self._seen:
            return None
        self._seen = step
        return step, value
