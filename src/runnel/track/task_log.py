"""tasks.jsonl: what became of each order to add tasks to a run. It is only appended to.

A row of an order that was taken has its `order`, the `version` whose history is the first to have its tasks, and the `tasks`. A
row of one that was refused says why (`refused`). It is written before any trainer hears of the tasks, and holds a whole order:
a run that is killed while it writes has half a line there, which counts as nothing.
"""

from __future__ import annotations

import json
from pathlib import Path

from runnel.core.disk import told_if_refused
from runnel.core.errors import ConfigError
from runnel.track.files import NotRegularError, open_append, read_regular
from runnel.track.folder import Row, are_tasks


class TaskLog:
    """The rows of one tasks.jsonl; empty if there is no file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.rows: list[Row] = []
        self._size = 0
        """Bytes of the whole lines."""
        self._read()

    @property
    def taken(self) -> list[Row]:
        """The orders that were taken, in the order of their versions."""
        return sorted((row for row in self.rows if "tasks" in row), key=lambda row: int(row["version"]))

    def add(self, row: Row) -> None:
        """Write a row behind the others."""
        line = json.dumps(row).encode() + b"\n"
        with told_if_refused(self._path.parent, what="new tasks were not taken"), open_append(self._path) as file:
            file.truncate(self._size)  # what a killed process has left of a line
            file.write(line)
        self._size += len(line)
        self.rows.append(row)

    def _read(self) -> None:
        try:
            data = read_regular(self._path)
        except FileNotFoundError:
            return
        except NotRegularError as error:
            raise ConfigError("run", str(self._path), f"{error}; put the file itself there") from error
        self._size = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._size].splitlines(), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not _is_row(row):
                raise ConfigError("run", str(self._path), f"line {number} is no row of new tasks; restore the file")
            self.rows.append(row)


def _is_row(row: object) -> bool:
    if not isinstance(row, dict) or not isinstance(row.get("order"), str):
        return False
    return isinstance(row.get("refused"), str) or (type(row.get("version")) is int and are_tasks(row.get("tasks")))
