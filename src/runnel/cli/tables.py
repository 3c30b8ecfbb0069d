"""Tables of numbers on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from runnel.report import tables as report

WIDTH = 110
"""Columns that the tables need; a narrower terminal wraps their lines."""

WIDEST = 2_000


def wide_console(*, stderr: bool) -> Console:
    """A console that is wide enough for the tables."""
    console = Console(stderr=stderr, soft_wrap=True)
    console.width = max(console.width, WIDTH)
    return console


def number_table(title: str, words: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table with columns of `words`, and to their right columns of `numbers`."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in words:
        table.add_column(name, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def show_tables(tables: Iterable[report.Table]) -> None:
    """Print tables of a report, as wide as they are: a line that is wrapped could not be read."""
    console = Console(file=sys.stdout, soft_wrap=True, width=WIDEST)
    for table in tables:
        if not table.rows:
            continue
        texts = [i for i in range(len(table.head)) if all(isinstance(row[i], str) for row in table.rows)]
        shown = Table(title=Text(table.title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for i, name in enumerate(table.head):
            shown.add_column(Text(name), justify="left" if i in texts else "right", no_wrap=True)
        for row in table.rows:
            shown.add_row(*(Text(report.shown(cell)) for cell in row))
        console.print(shown)
        if table.note:
            console.print(Text(table.note, style="dim"))
