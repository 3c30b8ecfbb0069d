"""Reads the rows of a file: JSON lines, JSON or Parquet. An error names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runnel.core.checks import check_text
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings

SUFFIXES = (".jsonl", ".json", ".parquet")


class Row(dict[str, Any]):
    """Columns by name; `place` is the position of the row, for errors."""

    def __init__(self, columns: Settings, place: str) -> None:
        super().__init__(columns)
        self.place = place


def read_rows(path: str | Path, *, setting: str = "task") -> list[Row]:
    """The rows of one file, in the format of its suffix. `setting` is the setting that named the file."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError(setting, str(path), "there is no such file")
    if path.suffix == ".parquet":
        rows = _parquet(path, setting)
    elif path.suffix == ".json":
        rows = _json(path)
    else:
        rows = _json_lines(path)
    if not rows:
        raise DataError(f"{path} has no rows")
    return rows


def _json_lines(path: Path) -> list[Row]:
    """Only a line feed ends a row: `splitlines` would also split at marks (U+2028, say) inside a text."""
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            rows.append(_row(_parsed(line, place), place))
    return rows


def _json(path: Path) -> list[Row]:
    rows = _parsed(path.read_bytes().removeprefix(b"\xef\xbb\xbf"), str(path), " A file with a row a line is named .jsonl.")
    if not isinstance(rows, list):
        raise DataError(f"{path}: a list of rows is expected, not {type(rows).__name__}")
    return [_row(row, f"{path}, row {i}") for i, row in enumerate(rows)]


def _parsed(data: bytes, place: str, hint: str = "") -> object:
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8 (iconv -f WINDOWS-1252 -t UTF-8, say)"
        raise DataError(f"{place}: not UTF-8 (byte {error.start + 1} is 0x{data[error.start]:02x}); {fix}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}).{hint}") from error


def _row(columns: object, place: str) -> Row:
    if not isinstance(columns, Mapping):
        raise DataError(f"{place}: a row is an object with columns, not {type(columns).__name__}")
    for name, value in columns.items():
        check_text(value, f"{place}: the column {name!r}")
    return Row(columns, place)


def _parquet(path: Path, setting: str) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ConfigError(setting, str(path), 'Parquet needs pyarrow; pip install "runnel[data]"') from error
    try:
        rows = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a whole Parquet file ({str(error).splitlines()[0]})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: a text in it is not UTF-8 ({error}); write the file again with UTF-8 texts") from error
    return [Row(row, f"{path}, row {i}") for i, row in enumerate(rows)]
