"""Tables of numbers on the terminal, for `runnel plan` and `runnel simulate`."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 110
"""Columns that the tables need; a narrower terminal wraps their lines."""


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
