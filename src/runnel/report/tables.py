"""Tables and figures as data: built once, then written as HTML, CSV, Markdown or LaTeX.

The numbers of a report lie beside it as CSV, one file for each table and figure. So nobody has to read them off a picture.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runnel.eval.aggregates import Interval
from runnel.eval.profiles import Band
from runnel.eval.statistics import resamples
from runnel.report.page import figure, text
from runnel.report.page import table as html_table
from runnel.report.plots import MAX_POINTS, Floats, Series, decimate, line_chart
from runnel.track.files import replace_file, writing
from runnel.track.numbers import short

BANDS = "Bands: 95 % of a bootstrap over seeds, where there are at least 3."
Cell = str | float | int | Interval | None


@dataclass(frozen=True)
class Table:
    """A table. `name` is the name of its file. A cell that is an `Interval` takes three columns of the CSV."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def html(self) -> str:
        """The table under its title."""
        numbers = [i for i in range(len(self.head)) if any(not isinstance(row[i], str) for row in self.rows)]
        cells = [[text(shown(cell)) for cell in row] for row in self.rows]
        note = f'<p class="soft small">{text(self.note)}</p>' if self.note else ""
        return f"<h3>{text(self.title)}</h3>{html_table(self.head, cells, numbers=numbers)}{note}" if self.rows else ""

    def csv_rows(self) -> list[list[str]]:
        """The header and the rows, with all digits of each number."""
        wide = [any(isinstance(row[i], Interval) for row in self.rows) for i in range(len(self.head))]
        head = [name for i, h in enumerate(self.head) for name in ([h, f"{h} low", f"{h} high"] if wide[i] else [h])]
        return [head, *([part for i, cell in enumerate(row) for part in _parts(cell, wide[i])] for row in self.rows)]


@dataclass(frozen=True)
class Figure:
    """Lines over one axis."""

    name: str
    title: str
    series: Sequence[Series]
    x_label: str = ""
    y_label: str = ""
    note: str = ""
    moments: Sequence[float] = ()
    """Positions at which a setting changed."""

    def html(self, *, large: bool = True) -> str:
        """The figure as HTML. A large one is drawn twice, for a wide page and for a phone; the style sheet shows one of
        them."""
        note = f'<p class="soft small">{text(self.note)}</p>' if self.note else ""
        if not large:
            return figure(self.svg(460, 220))
        return figure(self.svg(1000, 340), "wide") + figure(self.svg(460, 280), "narrow") + note

    def svg(self, width: int, height: int) -> str:
        return line_chart(
            self.series,
            title=self.title,
            x_label=self.x_label,
            y_label=self.y_label,
            width=width,
            height=height,
            moments=self.moments,
        )

    def csv_rows(self, *, faint: bool = True) -> list[list[str]]:
        """One row for each point that is drawn: of a long line at most 600. `faint` includes single runs behind their mean."""
        rows = [["figure", "series", self.x_label or "x", "value", "low", "high"]]
        for s in self.series:
            if len(s.x) and (faint or not s.faint):
                rows += [[self.title, s.name, *point] for point in _points(s)]
        return rows


def shown(cell: Cell) -> str:
    """A cell as text for people."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Interval):
        return f"{short(cell.value)} ({short(cell.low)} to {short(cell.high)})"
    return f"{cell:,}" if isinstance(cell, int) else short(cell)


def write_csv(folder: Path, name: str, rows: Iterable[Sequence[str]]) -> None:
    """Write one CSV file. A cell that a spreadsheet would run as a formula gets a quotation mark in front."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([[_plain(cell) for cell in row] for row in rows])
    with writing(folder, "its tables"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / f"{name}.csv", text.getvalue().encode(errors="replace"))


def _plain(cell: str) -> str:
    with suppress(ValueError):
        float(cell)
        return cell  # a negative number begins like a formula, and is none
    return "'" + cell if cell[:1] in ("=", "+", "-", "@") else cell


def _parts(cell: Cell, wide: bool) -> list[str]:
    if isinstance(cell, Interval):
        return [_full(cell.value), _full(cell.low), _full(cell.high)]
    return [cell if isinstance(cell, str) else _full(cell), *(["", ""] if wide else [])]


def _full(value: float | int | None) -> str:
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else repr(value)


def _points(s: Series) -> list[list[str]]:
    kept = decimate(s.y, MAX_POINTS).tolist()
    columns = [s.x, s.y, s.low, s.high]
    return [["" if c is None else _full(float(c[i])) for c in columns] for i in kept]


def as_series(name: str, band: Band, runs: Sequence[Floats]) -> Series:
    """A curve with its band. If a task of `runs` [tasks][seeds, ...] has too few seeds, the band is left out."""
    enough = resamples([len(task) for task in runs])
    low, high = (band.low, band.high) if enough else (None, None)
    return Series(name, band.x, band.value, low=low, high=high)
