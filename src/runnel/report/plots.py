"""Line charts as SVG text, without a plotting library: no script, light and dark, readable without a network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import DataError
from runnel.track.numbers import compact, labels, middle, short

Floats = NDArray[np.float64]

MAX_POINTS = 600
NUM_STRIPS = 60
NUM_COLORS = 6
STYLE = """
.chart{--c0:#0b6e99;--c1:#c2571a;--c2:#3d7d3a;--c3:#8a4fa8;--c4:#a8861d;--c5:#b13d5e;--ink:#24292f;--paper:#fff;
color:var(--ink);font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
.chart text{fill:currentColor}.chart .muted{opacity:.62}.chart .name{font-weight:600;font-size:13px}
.chart .grid{stroke:currentColor;opacity:.11}.chart .axis{stroke:currentColor;opacity:.4}
.chart path{fill:none;stroke-linejoin:round;stroke-linecap:round}
.chart .raw{stroke-width:1;opacity:.32}.chart .line{stroke-width:2}.chart .band{stroke:none;opacity:.17}
.chart .moment{stroke:currentColor;stroke-dasharray:3 4;opacity:.5}
.chart .strip{fill:currentColor;opacity:0}.chart .strip:hover{opacity:.09}
""" + "".join(f".chart .s{i}{{stroke:var(--c{i})}}.chart .f{i}{{fill:var(--c{i})}}" for i in range(NUM_COLORS))
DARK = ".chart{--c0:#58b4dd;--c1:#f0935a;--c2:#7cc378;--c3:#c792e0;--c4:#dcbc55;--c5:#ec8aa5;--ink:#d7dce2;--paper:#14171b}"


@dataclass(frozen=True)
class Series:
    """One line: `y` over `x`, with an optional band from `low` to `high`. All have the same length; NaN leaves a gap."""

    name: str
    x: Sequence[float] | Floats
    y: Sequence[float] | Floats
    low: Sequence[float] | Floats | None = None
    high: Sequence[float] | Floats | None = None
    smooth: bool = False
    """Whether to draw the values thin and their moving average thick."""
    marks: bool = False
    """Whether to draw a dot on each value."""
    color: int | None = None
    faint: bool = False
    """Thin and without an entry in the legend: one of many runs behind their mean."""

    def __post_init__(self) -> None:
        for values in (self.y, self.low, self.high):
            if values is not None and len(values) != len(self.x):
                raise DataError(f"series {self.name!r}: {len(values)} values for {len(self.x)} positions; give one for each")


@dataclass(frozen=True)
class PlotBox:
    """The plot area, and the mapping of data onto it."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def px(self, value: Floats | float) -> Floats:
        low, high = self.x
        return np.asarray(self.left + (np.asarray(value) - low) / (high - low) * (self.width - self.left - self.right))

    def py(self, value: Floats | float) -> Floats:
        low, high = self.y
        return np.asarray(
            self.height - self.bottom - (np.asarray(value) - low) / (high - low) * (self.height - self.top - self.bottom)
        )


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers inside [low, high], in steps of 1, 2, 2.5 or 5 times a power of ten.

    >>> nice_ticks(0, 100), nice_ticks(-1, 1, 4), nice_ticks(3, 3)
    ([0.0, 20.0, 40.0, 60.0, 80.0, 100.0], [-1.0, -0.5, 0.0, 0.5, 1.0], [3.0])
    """
    if not high > low:
        return [float(low)]
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(math.log(s / rough)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]  # + 0.0 turns -0.0 into 0.0


def smoothed(values: Sequence[float] | Floats, span: float | None = None) -> Floats:
    """Exponential moving average, with its start corrected for bias. `span` defaults to a thirtieth of the series. Skips
    NaN."""
    array = np.asarray(values, dtype=np.float64)
    keep = 1.0 - 2.0 / (max(len(array) / 30 if span is None else span, 1.0) + 1.0)
    out, total, weight = np.full(len(array), np.nan), 0.0, 0.0
    for i, value in enumerate(array.tolist()):
        if math.isfinite(value):
            total, weight = keep * total + (1.0 - keep) * value, keep * weight + (1.0 - keep)
            out[i] = total / weight
    return out


def decimate(y: Sequence[float] | Floats, limit: int = MAX_POINTS) -> NDArray[np.int64]:
    """Indices of at most `limit` points that look the same when drawn: the lowest and the highest of each range, and both
    ends."""
    array = np.asarray(y, dtype=np.float64)
    if len(array) <= limit:
        return np.arange(len(array))
    edges = np.linspace(0, len(array), (limit - 2) // 2 + 1).astype(np.int64)
    kept = {0, len(array) - 1}
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        values = np.where(np.isfinite(array[start:end]), array[start:end], 0.0)
        kept.update((start + int(values.argmin()), start + int(values.argmax())))
    return np.array(sorted(kept), dtype=np.int64)


def line_chart(
    series: Sequence[Series],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    width: int = 640,
    height: int = 260,
    standalone: bool = False,
    moments: Sequence[float] = (),
) -> str:
    """The series as one `<svg>`. `standalone` adds the style sheet and a background, for a file; a page has `STYLE` already.
    `moments` are positions at which something changed: dashed lines from top to bottom."""
    drawn = [(s, s.color if s.color is not None else i % NUM_COLORS) for i, s in enumerate(series) if len(s.x)]
    named = [(s.name, c) for s, c in drawn if not s.faint]
    legend, legend_height = _legend(named, width=width, y=38 if title else 18) if len(named) > 1 else ("", 0)
    box = _box(
        [s for s, _ in drawn],
        width=width,
        height=height,
        top=(30 if title else 12) + legend_height,
        label=bool(x_label),
    )
    frame = f"-14 -8 {width + 28} {height + 16}" if standalone else f"0 0 {width} {height}"
    parts = [
        f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" viewBox="{frame}" role="img" '
        f'aria-label="{escape(title or y_label or "chart")}">',
    ]
    if standalone:
        parts.append(f"<style>{STYLE}@media(prefers-color-scheme:dark){{{DARK}}}</style>")
        parts.append('<rect x="-14" y="-8" width="100%" height="100%" rx="8" style="fill:var(--paper)"/>')
    if title:
        parts.append(f'<text class="name" x="2" y="18">{escape(title)}</text>')
    if y_label:
        parts.append(f'<text class="muted" x="{width - 12}" y="18" text-anchor="end">{escape(y_label)}</text>')
    parts.append(legend)
    parts.extend(_axes(box, x_label))
    for x in box.px(np.asarray([at for at in moments if box.x[0] <= at <= box.x[1]])).tolist():
        parts.append(f'<path class="moment" d="M{x:.1f} {box.top:g}V{box.height - box.bottom:g}"/>')
    for s, color in drawn:
        parts.extend(_draw(s, color, box))
    if drawn:
        parts.extend(_strips([s for s, _ in drawn if not s.faint], box, x_label))
    else:
        parts.append(f'<text class="muted" x="{width / 2:g}" y="{height / 2:g}" text-anchor="middle">no data yet</text>')
    return "".join([*parts, "</svg>"])


def curve_svg(
    series: Sequence[Series], path: Path | str, *, title: str = "", x_label: str = "steps", y_label: str = "", height: int = 300
) -> Path:
    """Write the series as an SVG file of its own (for a README, the docs)."""
    path = Path(path)
    chart = line_chart(series, title=title, x_label=x_label, y_label=y_label, width=720, height=height, standalone=True)
    path.write_text(chart + "\n", encoding="utf-8")
    return path


def _box(series: Sequence[Series], *, width: int, height: int, top: float, label: bool) -> PlotBox:
    """The plot area for the range of the lines. Bands do not count, and are cut to it: a band of few seeds is so wide that the
    lines would look flat, and it reaches values that cannot occur."""
    x = _range([np.asarray(s.x, dtype=np.float64) for s in series])
    low, high = _range([np.asarray(s.y, dtype=np.float64) for s in series])
    y = (low - 0.05 * (high - low), high + 0.05 * (high - low))
    widest = max(map(len, labels(nice_ticks(*y, 4))), default=1)
    return PlotBox(width, height, left=18 + 7.2 * widest, right=18, top=top, bottom=38 if label else 24, x=x, y=y)


def _range(arrays: Sequence[Floats]) -> tuple[float, float]:
    finite = [a[np.isfinite(a)] for a in arrays]
    values = np.concatenate(finite) if finite else np.zeros(0)
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    if low == high:
        return (0.0, 1.0) if low == 0 else (low - 0.1 * abs(low), low + 0.1 * abs(low))
    return low, high


def _axes(box: PlotBox, x_label: str) -> Iterator[str]:
    base, end = box.height - box.bottom, box.width - box.right
    ticks = nice_ticks(*box.y, 4)
    for tick, label in zip(ticks, labels(ticks), strict=True):
        y = float(box.py(tick))
        yield f'<line class="grid" x1="{box.left:g}" x2="{end:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="muted" x="{box.left - 7:g}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<line class="axis" x1="{box.left:g}" x2="{end:g}" y1="{base:g}" y2="{base:g}"/>'
    ticks = nice_ticks(*box.x, max(2, int(box.width / 110)))
    for tick, label in zip(ticks, labels(ticks), strict=True):
        x = float(box.px(tick))
        yield f'<text class="muted" x="{x:.1f}" y="{base + 16:g}" text-anchor="middle">{label}</text>'
    if x_label:
        yield f'<text class="muted" x="{end:g}" y="{box.height - 6:g}" text-anchor="end">{escape(x_label)}</text>'


def _legend(named: Sequence[tuple[str, int]], *, width: float, y: float) -> tuple[str, int]:
    """The legend in as many lines as it needs, and its height."""
    x, line, parts, most = 2.0, 0, [], max(int(width / 9), 8)
    for name, color in named:
        shown = middle(name, most)
        room = 19 + 6.8 * len(shown)
        if x > 2.0 and x + room > width:
            x, line = 2.0, line + 1
        at = y + 18 * line
        parts.append(f'<path class="line s{color}" d="M{x:g} {at - 4:g}h14"/>')
        parts.append(f'<text x="{x + 19:g}" y="{at:g}">{escape(shown)}</text>')
        x += room + 16
    return "".join(parts), 20 + 18 * line


def _draw(s: Series, color: int, box: PlotBox) -> Iterator[str]:
    x, y = np.asarray(s.x, dtype=np.float64), np.asarray(s.y, dtype=np.float64)
    if s.low is not None and s.high is not None:
        low, high = np.clip(np.asarray(s.low, dtype=np.float64), *box.y), np.clip(np.asarray(s.high, dtype=np.float64), *box.y)
        known = np.flatnonzero(np.isfinite(x) & np.isfinite(low) & np.isfinite(high))
        known = known[decimate(high[known], MAX_POINTS // 2)]
        up, down = _points(x[known], high[known], box), _points(x[known], low[known], box)
        if up:
            yield f'<path class="band f{color}" style="fill:var(--c{color})" d="M{"L".join([*up, *reversed(down)])}Z"/>'
    raw = decimate(y)
    yield f'<path class="{"raw" if s.smooth or s.faint else "line"} s{color}" d="{_path(x[raw], y[raw], box)}"/>'
    if s.smooth:
        mean = smoothed(y)
        kept = decimate(mean)
        yield f'<path class="line s{color}" d="{_path(x[kept], mean[kept], box)}"/>'
    if s.marks:
        for point in _points(x[raw], y[raw], box):
            px, py = point.split()
            yield f'<circle class="f{color}" cx="{px}" cy="{py}" r="2.6"/>'


def _points(x: Floats, y: Floats, box: PlotBox) -> list[str]:
    known = np.isfinite(x) & np.isfinite(y)
    return [f"{a:.1f} {b:.1f}" for a, b in zip(box.px(x[known]).tolist(), box.py(y[known]).tolist(), strict=True)]


def _path(x: Floats, y: Floats, box: PlotBox) -> str:
    """The line through the points, with a gap where a value is missing."""
    known = np.isfinite(x) & np.isfinite(y)
    out, pen = [], "M"
    for ok, a, b in zip(known.tolist(), box.px(x).tolist(), box.py(y).tolist(), strict=True):
        if ok:
            out.append(f"{pen}{a:.1f} {b:.1f}")
        pen = "L" if ok else "M"
    return "".join(out)


def _strips(series: Sequence[Series], box: PlotBox, x_label: str) -> Iterator[str]:
    """Invisible columns over the plot. A tooltip shows the values of the column under the pointer, without a script."""
    if not series:
        return
    edges = np.linspace(box.x[0], box.x[1], NUM_STRIPS + 1)
    step = (box.width - box.left - box.right) / NUM_STRIPS
    columns = [(s, *_known(s)) for s in series]
    for i in range(NUM_STRIPS):
        lines = []
        for s, x, y in columns:
            inside = y[(x >= edges[i]) & ((x < edges[i + 1]) | ((i == NUM_STRIPS - 1) & (x <= edges[i + 1])))]
            if len(inside):
                lines.append(f"{s.name}: {short(float(inside.mean()))}")
        if lines:
            text = "\n".join([f"{compact(float(edges[i]))} {x_label}".strip(), *lines])
            yield (
                f'<rect class="strip" x="{box.left + i * step:.1f}" y="{box.top:g}" width="{step:.1f}" '
                f'height="{box.height - box.top - box.bottom:g}"><title>{escape(text)}</title></rect>'
            )


def _known(s: Series) -> tuple[Floats, Floats]:
    x, y = np.asarray(s.x, dtype=np.float64), np.asarray(s.y, dtype=np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]
