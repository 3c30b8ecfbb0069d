"""The tables of an evaluation, as they stand in a run's files: read by reports and by the board."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runnel.track.folder import Row
from runnel.track.history import is_number

MOST = 100
"""Rows and columns of a table that is shown."""


@dataclass(frozen=True)
class ShownTable:
    """A table of numbers with a title; None where nothing was measured."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]


def tables_in(evals: Sequence[Row]) -> list[ShownTable]:
    """The tables of the last evaluation that has some. What has another form than `core` writes is left out: a folder may
    come from anybody.

    >>> table = {"rows": ["a"], "columns": ["b"], "values": [[0.5]]}
    >>> [t.values for t in tables_in([{"tables": {"pay-offs": table, "odd": 3}}])]
    [[[0.5]]]
    """
    tables = [row["tables"] for row in evals if isinstance(row.get("tables"), dict) and row["tables"]]
    last: dict[str, object] = tables[-1] if tables else {}
    return [table for title, found in last.items() if (table := _table(str(title), found)) is not None]


def _table(title: str, found: object) -> ShownTable | None:
    if not isinstance(found, dict):
        return None
    rows, columns, values = found.get("rows"), found.get("columns"), found.get("values")
    if not isinstance(rows, list) or not isinstance(columns, list) or not isinstance(values, list):
        return None
    if len(values) != len(rows) or not all(isinstance(line, list) and len(line) == len(columns) for line in values):
        return None
    if not 0 < len(rows) <= MOST or not 0 < len(columns) <= MOST:
        return None
    cells = [[float(x) if is_number(x) else None for x in line] for line in values]
    return ShownTable(title, [str(name) for name in rows], [str(name) for name in columns], cells)
