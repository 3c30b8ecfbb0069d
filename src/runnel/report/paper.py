"""Writes a comparison for a paper: vector figures (SVG and PDF, by matplotlib) and LaTeX tables for a plain article."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.eval.aggregates import Interval
from runnel.report.tables import Cell, Figure, Table
from runnel.report.verdicts import Verdicts
from runnel.track.files import writing
from runnel.track.numbers import short

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Six colours that people with a colour vision deficiency can tell apart (Okabe and Ito 2008)."""
STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "pdf.fonttype": 42,
    "svg.hashsalt": "runnel",
}
_SPECIAL = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
}
LESS_IS_BETTER = ("optimality gap",)
BOLD = "Bold: the best, and all whose interval reaches it."


def write_paper(verdicts: Verdicts, folder: Path) -> list[Path]:
    """Write figures and tables into `folder`. Returns the files."""
    matplotlib = _matplotlib()
    with writing(folder, "figures and tables", field="paper"):
        folder.mkdir(parents=True, exist_ok=True)
        files = [path for figure in verdicts.figures for path in _draw(matplotlib, figure, folder)]
        files += _draw_intervals(matplotlib, verdicts.tables[0], folder)
        files.append(_write(folder / "table.tex", _aggregates(verdicts)))
        if len(verdicts.tasks) > 1:
            files.append(_write(folder / "tasks.tex", _tasks(verdicts)))
        files += [_write(folder / f"{table.name}.tex", _plain_table(table)) for table in verdicts.others]
    return files


def latex(value: object) -> str:
    r"""Escape a text for LaTeX. A character that plain LaTeX fonts lack becomes a question mark.

    >>> latex("50% of a_b"), latex("x^2 \\input{y}")
    ('50\\% of a\\_b', 'x\\textasciicircum{}2 \\textbackslash{}input\\{y\\}')
    """
    plain = re.sub(r"\s+", " ", str(value))
    return "".join(_SPECIAL.get(c, c if " " <= c <= "~" else "?") for c in plain)


# --------------------------------------------------------------------------------------------------------------- tables
def _aggregates(verdicts: Verdicts) -> str:
    table = verdicts.tables[0]
    columns = list(range(3, len(table.head)))
    best = {i: _best([row[i] for row in table.rows], less=table.head[i] in LESS_IS_BETTER) for i in columns}
    rows = [
        [latex(row[0]), latex(row[2]), *(_number(row[i], bold=n in best[i]) for i in columns)]
        for n, row in enumerate(table.rows)
    ]
    head = ["", "runs", *(table.head[i] for i in columns)]
    tasks = f"{len(verdicts.tasks)} tasks" if len(verdicts.tasks) > 1 else latex(verdicts.tasks[0])
    unit = verdicts.unit.capitalize()
    caption = f"{unit} on {tasks}, with 95\\,\\% intervals of a stratified bootstrap over seeds. {BOLD}"
    return _table(head, rows, "l" + "r" * (len(head) - 1), caption, "tab:aggregates")


def _tasks(verdicts: Verdicts) -> str:
    """A row for each task, a column for each group: means over seeds."""
    cells: dict[tuple[str, str], Cell] = {(str(row[0]), str(row[1])): row[3] for row in verdicts.tables[2].rows}
    rows = []
    for task in sorted({task for task, _ in cells}):
        found = [cells.get((task, name)) for name in verdicts.names]
        best = _best(found, less=False)
        rows.append([latex(task), *(_number(cell, bold=n in best) for n, cell in enumerate(found))])
    head = ["task", *(latex(name) for name in verdicts.names)]
    caption = f"Mean return over seeds for each task, with 95\\,\\% intervals. {BOLD}"
    return _table(head, rows, "l" + "r" * len(verdicts.names), caption, "tab:tasks")


def _plain_table(table: Table) -> str:
    """A table as it is, without a judgement."""
    numbers = [any(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.head))]
    rows = [[latex(cell) if isinstance(cell, str) else _number(cell, bold=False) for cell in row] for row in table.rows]
    columns = "".join("r" if number else "l" for number in numbers)
    return _table(
        [latex(name) for name in table.head], rows, columns, latex(f"{table.title}. {table.note}"), f"tab:{table.name}"
    )


def _best(cells: Sequence[Cell], *, less: bool) -> set[int]:
    """The rows to print bold: the best estimate, and those whose interval contains it."""
    known: dict[int, Interval] = {}
    for i, cell in enumerate(cells):
        if isinstance(cell, Interval):
            known[i] = cell
        elif isinstance(cell, float | int):
            known[i] = Interval(cell, cell, cell)
    if len(known) < 2:
        return set()
    top = (min if less else max)(interval.value for interval in known.values())
    return {i for i, c in known.items() if c.value == top or (c.low <= top if less else c.high >= top)}


def _number(cell: Cell, *, bold: bool) -> str:
    if isinstance(cell, Interval):
        value, rest = _tex(cell.value), f" {{\\scriptsize [{_tex(cell.low)}, {_tex(cell.high)}]}}"
    else:
        value, rest = ("--" if cell is None else _tex(float(cell))), ""
    return (f"\\textbf{{{value}}}" if bold else value) + rest


def _tex(value: float) -> str:
    shown = latex(short(value)).replace("e-0", "e-")
    return shown.replace("-", "$-$") if shown.startswith("-") else shown


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: str, caption: str, label: str) -> str:
    first, *others = ("    " + " & ".join(cells) + r" \\" for cells in (head, *rows))
    body = "\n".join(others)
    return rf"""% \usepackage{{booktabs}}
\begin{{table}}
  \centering
  \caption{{{caption}}}
  \label{{{label}}}
  \begin{{tabular}}{{{columns}}}
    \toprule
{first}
    \midrule
{body}
    \bottomrule
  \end{{tabular}}
\end{{table}}
"""


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# -------------------------------------------------------------------------------------------------------------- figures
def _matplotlib() -> ModuleType:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise ConfigError("paper", None, f"needs matplotlib: pip install 'runnel[paper]' ({error})") from error
    module: ModuleType = matplotlib
    return module


def _draw(matplotlib: ModuleType, figure: Figure, folder: Path) -> list[Path]:
    """Draw a line and a band for each group, as wide as a column of a page."""
    with matplotlib.rc_context(STYLE):
        # a Figure without pyplot: no global state, no window
        drawn = matplotlib.figure.Figure(figsize=(3.4, 2.4), layout="constrained")
        axes = drawn.subplots()
        for i, s in enumerate(figure.series):
            color = COLORS[(s.color if s.color is not None else i) % len(COLORS)]
            axes.plot(s.x, s.y, color=color, label=_plain(s.name), linewidth=1.5)
            if s.low is not None and s.high is not None:
                axes.fill_between(s.x, s.low, s.high, color=color, alpha=0.18, linewidth=0)
        axes.set_xlabel(_plain(figure.x_label))
        axes.set_ylabel(_plain(figure.y_label))
        if len(figure.series) > 1:
            axes.legend(frameon=False, fontsize=8)
        return _save(drawn, folder / figure.name)


def _draw_intervals(matplotlib: ModuleType, table: Table, folder: Path) -> list[Path]:
    """Draw each statistic with its interval, one group below the other."""
    columns = list(range(3, len(table.head)))
    with matplotlib.rc_context({**STYLE, "axes.grid": False}):
        size = (1.7 * len(columns) + 0.6, 0.4 + 0.32 * max(len(table.rows), 2))
        drawn = matplotlib.figure.Figure(figsize=size, layout="constrained")
        many = np.atleast_1d(drawn.subplots(1, len(columns), sharey=True))
        for axes, column in zip(many, columns, strict=True):
            for place, row in enumerate(table.rows):
                cell = row[column]
                known = cell if isinstance(cell, Interval) else None
                value = known.value if known else cell
                color = COLORS[place % len(COLORS)]
                if known:
                    axes.plot(
                        [known.low, known.high], [place, place], color=color, linewidth=5, alpha=0.4, solid_capstyle="butt"
                    )
                axes.plot([value], [place], marker="|", color=color, markersize=11, markeredgewidth=2)
            axes.set_title(table.head[column], fontsize=9)
        many[0].set_yticks(range(len(table.rows)), [_plain(str(row[0])) for row in table.rows])
        many[0].set_ylim(len(table.rows) - 0.5, -0.5)
        return _save(drawn, folder / "intervals")


def _plain(text: str) -> str:
    """The text with escaped dollar signs: matplotlib would typeset what is between two as mathematics."""
    return text.replace("$", r"\$")


def _save(drawn: Any, stem: Path) -> list[Path]:
    """Save a figure of matplotlib as SVG and PDF, without dates: the same runs give the same files."""
    svg, pdf = (stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "pdf"))
    drawn.savefig(svg, metadata={"Date": None})
    drawn.savefig(pdf, metadata={"CreationDate": None})
    return [svg, pdf]
