"""metrics.csv: a wide table of a run, one line for each update and evaluation. Pandas and spreadsheets open it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from runnel.track.folder import Row, Settings
from runnel.track.sinks.base import KEYS, cells, kept_rows


class CsvSink:
    """Writes metrics.csv. An empty cell is a number that the row does not have.

    When a new column appears, the whole file is written again under another name and renamed. So it is a complete table at
    every moment. On resume it is made again from metrics.jsonl.
    """

    def __init__(self, folder: Path, config: Settings | None = None) -> None:
        self.path = folder / "metrics.csv"
        self._columns: list[str] = list(KEYS)
        self._rewrite([cells(row) for row in kept_rows(folder)])

    def row(self, row: Row) -> None:
        line = cells(row)
        if not line:
            return
        if not line.keys() <= self._known:
            self._file.close()
            with self.path.open(newline="", encoding="utf-8") as file:
                before: list[Row] = list(csv.DictReader(file))
            self._rewrite([*before, line])
            return
        self._writer.writerow(line)
        self._file.flush()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _rewrite(self, lines: Sequence[Row]) -> None:
        self._columns = list(dict.fromkeys([*self._columns, *(name for line in lines for name in line)]))
        self._known = frozenset(self._columns)
        new = self.path.with_suffix(".csv.new")
        self._file = new.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, self._columns, lineterminator="\n")
        self._writer.writeheader()
        self._writer.writerows(lines)
        self._file.flush()
        new.replace(self.path)
