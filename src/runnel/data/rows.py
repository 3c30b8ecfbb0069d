"""Rows of one file: JSON lines, JSON, Parquet. What is damaged is named by its file and line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runnel.core.checks import check_text
from runnel.core.errors import ConfigError, DataError

SUFFIXES = (".jsonl", ".json", ".parquet")


class Row(dict[str, Any]):
    """Columns by name; `place` says where the row stands, for errors."""

    def __init__(self, columns: Mapping[str, Any], place: str) -> None:
        super().__init__(columns)
        self.place = place


def read_rows(path: str | Path, *, setting: str = "task") -> list[Row]:
    """The rows of one file, by its ending; `setting` is what named the file."""
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
    """A row ends at a line feed alone: other marks that Python takes for ends of lines (U+2028, say) may stand in a text."""
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


def _parsed(data: bytes, place: str, hint: str = "") -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8 (iconv -f WINDOWS-1252 -t UTF-8, say)"
        raise DataError(f"{place}: not UTF-8 (byte {error.start + 1} is 0x{data[error.start]:02x}); {fix}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}).{hint}") from error


def _row(columns: Any, place: str) -> Row:
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
