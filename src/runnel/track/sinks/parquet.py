"""metrics.parquet/: the wide table of a run as Parquet files of one schema. Pandas, pyarrow and DuckDB read the folder."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.core.errors import ConfigError
from runnel.track.folder import Row, Settings
from runnel.track.sinks.base import KEYS, cells, kept_rows

if TYPE_CHECKING:
    import pyarrow

PART = 4096
"""Rows of one file. The last file is written again until it is full."""


class ParquetSink:
    """Writes a folder of Parquet files, each renamed into place when it is complete: a killed run keeps all that was flushed.

    A Parquet file cannot be read before it is closed, so the table is a folder of files. A column that appears later is added
    to all of them, so that every reader sees the same columns. On resume the folder is made again from metrics.jsonl.
    """

    def __init__(self, folder: Path, config: Settings | None = None, *, part: int = PART) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError as error:
            raise ConfigError("track", "parquet", f"cannot import it ({error}); pip install 'runnel[data]'") from error
        self._arrow, self._parquet, self._part = pyarrow, parquet, part
        self.path = folder / "metrics.parquet"
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        self._columns: dict[str, None] = dict.fromkeys(KEYS)
        self._num_full = 0
        self._rows: list[Row] = []
        self._dirty = False
        for row in kept_rows(folder):
            self.row(row)
        self.flush()

    def row(self, row: Row) -> None:
        line = cells(row)
        if not line:
            return
        if not line.keys() <= self._columns.keys():
            self._columns |= dict.fromkeys(line)
            self._widen()
        self._rows.append(line)
        self._dirty = True
        if len(self._rows) >= self._part:
            self.flush()
            self._num_full, self._rows = self._num_full + 1, []

    def flush(self) -> None:
        if self._dirty:
            self._write(self._num_full, self._arrow.Table.from_pylist(self._rows, schema=self._schema()))
            self._dirty = False

    def close(self) -> None:
        self.flush()

    def _schema(self) -> pyarrow.Schema:
        arrow = self._arrow
        kinds = {"kind": arrow.string(), **{key: arrow.int64() for key in KEYS[1:]}}
        return arrow.schema([(name, kinds.get(name, arrow.float64())) for name in self._columns])

    def _widen(self) -> None:
        """Write all full files again, with today's columns."""
        schema = self._schema()
        for number in range(self._num_full):
            table = self._parquet.ParquetFile(self._file(number)).read()
            self._write(number, self._arrow.Table.from_pylist(table.to_pylist(), schema=schema))
        self._dirty = bool(self._rows)

    def _file(self, number: int) -> Path:
        return self.path / f"part-{number:05}.parquet"

    def _write(self, number: int, table: pyarrow.Table) -> None:
        new = self.path / f".part-{number:05}.new"
        self._parquet.write_table(table, new)
        new.replace(self._file(number))
