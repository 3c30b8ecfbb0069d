"""Brings many curves onto one grid that a screen can show: extremes kept or means; the mean over seeds with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runnel.eval.statistics import mean_interval
from runnel.track.history import Curve, Floats


@dataclass(frozen=True)
class Aligned:
    """Positions `[n]`, and the values of each curve there `[curves, n]`; NaN where a curve has none."""

    x: Floats
    y: Floats


def clean(curve: Curve, span: tuple[float, float] | None = None) -> Curve:
    """The finite values in order of position, within `span` and one more on either side, so that lines reach its edges."""
    x, y = curve
    known = np.isfinite(y) & np.isfinite(x)
    if not known.all():
        x, y = x[known], y[known]
    if len(x) > 1 and (np.diff(x) < 0).any():
        order = np.argsort(x, kind="stable")
        x, y = x[order], y[order]
    if span is not None:
        first = max(int(np.searchsorted(x, span[0], "left")) - 1, 0)
        last = int(np.searchsorted(x, span[1], "right")) + 1
        x, y = x[first:last], y[first:last]
    return x, y


def align(curves: Sequence[Curve], *, points: int, means: bool = False) -> Aligned:
    """Bring curves (from `clean`) onto one grid of about `points` positions.

    If they have no more distinct positions than that, each value stays as it is. Otherwise the range is cut into equal bins,
    and each bin shows its smallest and its largest value, so that no peak is lost; or with `means` their mean.

    >>> grid = align([(np.arange(4.0), np.array([1.0, 9.0, 2.0, 3.0]))], points=4)
    >>> grid.y.tolist()
    [[1.0, 9.0, 2.0, 3.0]]
    """
    filled = [x for x, _ in curves if len(x)]
    if not filled:
        return Aligned(np.zeros(0), np.zeros((len(curves), 0)))
    if sum(map(len, filled)) <= 8 * points:
        exact = np.unique(np.concatenate(filled))
        if len(exact) <= points:
            return Aligned(exact, np.stack([_place(exact, curve) for curve in curves]))
    low, high = min(x[0] for x in filled), max(x[-1] for x in filled)
    num = max(points if means else points // 2, 1)
    edges = np.linspace(low, high, num + 1)
    rows = [_bins(curve, edges, means=means) for curve in curves]
    if means:
        return Aligned((edges[:-1] + edges[1:]) / 2, np.stack(rows))
    width = edges[1] - edges[0]
    x = np.stack([edges[:-1] + 0.25 * width, edges[:-1] + 0.75 * width], axis=1).ravel()
    return Aligned(x, np.stack(rows))


def _place(grid: Floats, curve: Curve) -> Floats:
    out = np.full(len(grid), np.nan)
    x, y = curve
    out[np.searchsorted(grid, x)] = y  # of several values at one position the last one stays
    return out


def _bins(curve: Curve, edges: Floats, *, means: bool) -> Floats:
    x, y = curve
    num = len(edges) - 1
    out = np.full(num if means else 2 * num, np.nan)
    starts = np.searchsorted(x, edges[:-1], "left")
    ends = np.append(starts[1:], len(x))
    full = ends > starts
    if not full.any():
        return out
    at = starts[full]  # only full bins: for an empty one `reduceat` returns the next bin's first value
    if means:
        out[full] = np.add.reduceat(y, at) / (ends - starts)[full]
        return out
    both = out.reshape(num, 2)
    both[full, 0], both[full, 1] = np.minimum.reduceat(y, at), np.maximum.reduceat(y, at)
    return out


def smooth(y: Floats, weight: float) -> Floats:
    """An exponential moving average along each row, with its start corrected for bias. Gaps stay gaps. `weight` is in [0, 1).

    >>> smooth(np.array([[0.0, 1.0]]), 0.5).round(3).tolist()
    [[0.0, 0.667]]
    """
    total, mass = np.zeros(len(y)), np.zeros(len(y))
    out = np.full_like(y, np.nan)
    for i in range(y.shape[1]):
        known = np.isfinite(y[:, i])
        total = np.where(known, weight * total + (1 - weight) * np.where(known, y[:, i], 0.0), total)
        mass = np.where(known, weight * mass + (1 - weight), mass)
        out[known, i] = total[known] / mass[known]
    return out


def across_seeds(aligned: Aligned, members: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """The mean over some curves, and its 95 % t-interval. Each curve is interpolated between its own values.

    The mean ends where the first curve ends: a mean over fewer seeds than before would jump.
    """
    rows = np.stack([_filled(aligned.x, aligned.y[i]) for i in members])
    rows = rows[np.isfinite(rows).any(axis=1)]
    if not len(rows):
        nothing = np.full(len(aligned.x), np.nan)
        return nothing, nothing, nothing
    mean, half = mean_interval(rows)
    return mean, mean - half, mean + half


def _filled(x: Floats, y: Floats) -> Floats:
    known = np.isfinite(y)
    if not known.any():
        return y
    return np.interp(x, x[known], y[known], left=np.nan, right=np.nan)


def plain(values: Floats, digits: int = 6) -> list[float | None]:
    """Numbers for JSON: a few digits, and null for NaN."""
    return [None if v != v else float(f"{v:.{digits}g}") for v in values.tolist()]
