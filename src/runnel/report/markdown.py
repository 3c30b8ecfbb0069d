"""Writes a short report in Markdown, for a pull request: the verdicts, a table, and curves of block characters."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from runnel.report.comparison import run_rows
from runnel.report.conversations import conversation_tables, run_table
from runnel.report.tables import Cell, Figure, Table, shown
from runnel.report.verdicts import Verdicts
from runnel.track.files import replace_file, writing
from runnel.track.history import History, load_history
from runnel.track.numbers import sparkline

MOST_ROWS = 30
SPARKS = 24
_SPECIAL = re.compile(r"([\\`*_\[\]|~$]|^[#+=-]|^\d+(?=[.)]\s))")


def md(value: object) -> str:
    """Escape a value so that Markdown shows it as it is: no markup, no HTML, no link, no mention.

    >>> md("a|b *c* <script> @you")
    'a\\\\|b \\\\*c\\\\* &lt;script&gt; &#64;you'
    """
    plain = re.sub(r"\s+", " ", str(value)).strip()
    escaped = _SPECIAL.sub(_escape, html.escape(plain, quote=False))
    return escaped.replace("@", "&#64;").replace("://", ":&#47;&#47;")


def _escape(found: re.Match[str]) -> str:
    return f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}"


def fence(text: str, language: str = "") -> str:
    """A block of code. Its fence is longer than any run of backticks in the text, so nothing inside can close it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    marks = "`" * max(3, longest + 1)
    return f"{marks}{language}\n{text.rstrip()}\n{marks}\n"


def md_table(table: Table) -> str:
    """A table in Markdown; of a long one, only the first rows."""
    if not table.rows:
        return ""
    numbers = [any(not isinstance(row[i], str) for row in table.rows) for i in range(len(table.head))]
    lines = [table.head, ["---:" if number else "---" for number in numbers]]
    lines += [[md(shown(cell)) for cell in row] for row in table.rows[:MOST_ROWS]]
    text = "\n".join("| " + " | ".join(md(c) if i == 0 else c for c in line) + " |" for i, line in enumerate(lines))
    rest = len(table.rows) - MOST_ROWS
    return text + "\n" + (f"\n{rest} more rows are in the report.\n" if rest > 0 else "")


def write_markdown(target: Path, *, verdicts: Verdicts | None = None, runs: Sequence[Path | str] = ()) -> Path:
    """Write the verdicts of a comparison, or a line for each run. Returns the path."""
    text = verdicts_markdown(verdicts) if verdicts is not None else runs_markdown([load_history(run) for run in runs])
    with writing(target, "the summary"):
        replace_file(target, text.encode(errors="replace"))
    return target


def verdicts_markdown(verdicts: Verdicts) -> str:
    """The verdicts of a comparison: sentences, aggregates, tasks if there are several, and curves."""
    aggregates, _, tasks, _ = verdicts.tables
    parts = ["### Comparison over seeds\n", *(f"- {md(line)}" for line in verdicts.sentences), ""]
    parts += [md_table(aggregates), f"<sub>{md(aggregates.note)}</sub>\n"]
    parts += [md_table(tasks)] if len(verdicts.tasks) > 1 else []
    parts += [f"#### {md(table.title)}\n\n{md_table(table)}" for table in verdicts.others]
    parts += [_sparks(figure) for figure in verdicts.figures if figure.name == "efficiency"]
    if verdicts.notices:
        parts += ["<details><summary>notes</summary>\n", *(f"- {md(line)}" for line in verdicts.notices), "\n</details>"]
    return "\n".join(parts) + "\n"


def runs_markdown(runs: Sequence[History]) -> str:
    """A table with a line for each run, and its curve."""
    table = run_rows(runs)
    curves = [
        sparkline(run.evaluation()[1].tolist() if len(run.evals) > 1 else run.curve("return")[1].tolist(), SPARKS)
        for run in runs
    ]
    rows = [[*row, curve] for row, curve in zip(table.rows, curves, strict=True)]
    text = "### Runs\n\n" + md_table(Table(table.name, table.title, [*table.head, "curve"], rows))
    talks = conversation_tables(runs[0]) if len(runs) == 1 else [run_table(runs)]
    text += "".join(f"\n#### {md(table.title)}\n\n{md_table(table)}" for table in talks if table.rows)
    collapses = [f"- **{md(run.name)}**: {md(line)}" for run in runs for line in run.collapses]
    return text + ("\n" + "\n".join(collapses) + "\n" if collapses else "")


def _sparks(figure: Figure) -> str:
    rows: list[list[Cell]] = [
        [s.name, sparkline([float(v) for v in s.y], SPARKS), float(np.asarray(s.y)[-1])] for s in figure.series
    ]
    return md_table(
        Table(figure.name, figure.title, ["group", f"{figure.title.lower()} over {figure.x_label}", "at the end"], rows)
    )
