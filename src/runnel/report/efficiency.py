"""Sample-efficiency curves of groups of runs: the interquartile mean over tasks and seeds on a grid of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runnel.eval.profiles import efficiency_curve
from runnel.eval.reference import Range, normalised
from runnel.report.budgets import Runs
from runnel.report.curves import axis_label, return_name
from runnel.report.plots import smoothed
from runnel.report.tables import BANDS, Figure, as_series
from runnel.track.history import Curve, Floats, History

GRID = 60
EARLY = ("solved", "stopped", "collapsed")
"""Runs that end like this keep their last score to the end of the grid."""


def efficiency(groups: Sequence[tuple[str, Runs]], ranges: Mapping[str, Range], unit: str) -> Figure | None:
    """The curves of all groups on one grid; None if a run has fewer than two points, or if the runs share no range.

    The curves show evaluations if every run has several, else training returns. A run that stopped at its goal or at a collapse
    keeps its last score.
    """
    runs = [run for _, tasks in groups for members in tasks.values() for run in members]
    evaluated = all(np.isfinite(run.evaluation()[1]).sum() > 1 for run in runs)
    curves = {id(run): _curve(run, evaluated) for run in runs}
    if len({run.axis for run in runs}) > 1 or any(len(x) < 2 for x, _ in curves.values()):
        return None
    grid = _grid(runs, curves)
    if grid is None:
        return None
    series = []
    for name, tasks in groups:
        rows = [
            normalised(np.stack([np.interp(grid, *curves[id(run)]) for run in members]), ranges.get(task))
            for task, members in tasks.items()
        ]
        series.append(as_series(name, efficiency_curve(rows, grid), rows))
    what = "evaluations" if evaluated else "training returns, smoothed; not every run has several evaluations"
    note = f"IQM over tasks and seeds of {what}. {BANDS}"
    if any(run.status in EARLY for run in runs):
        note += " A run that stopped at its goal, or by a collapse, keeps its last score."
    return Figure("efficiency", "Sample efficiency", series, axis_label(runs), f"IQM of {unit}", note)


def _curve(run: History, evaluated: bool) -> Curve:
    x, y = run.evaluation() if evaluated else run.curve(return_name(run))
    x, y = x[np.isfinite(y)], y[np.isfinite(y)]
    order = np.argsort(x, kind="stable")
    return x[order], y[order] if evaluated else smoothed(y[order])


def _grid(runs: Sequence[History], curves: Mapping[int, Curve]) -> Floats | None:
    start = max(float(curves[id(run)][0][0]) for run in runs)
    ends = [(run.status in EARLY, float(curves[id(run)][0][-1])) for run in runs]
    whole = [end for stopped, end in ends if not stopped]
    end = min(whole) if whole else max(end for _, end in ends)
    return np.linspace(start, end, GRID) if end > start else None
