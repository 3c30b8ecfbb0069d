"""Rows of prompts from files: JSON lines, Parquet, and Hugging Face data sets on disk. What is damaged is named by its place.

A file is one split. A folder holds splits: `train.jsonl` beside `test.jsonl`, or what `datasets` saved there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runnel.core.errors import ConfigError, DataError

Row = dict[str, Any]
SUFFIXES = (".jsonl", ".json", ".parquet")
HELD_OUT = ("test", "validation", "eval", "heldout")
"""Names under which the split that is not trained on may go, in this order."""


def is_data(name: str) -> bool:
    """Whether `name` is the path of data and not the name of a task or a function."""
    return name.endswith(SUFFIXES) or Path(name).is_dir()


def read_splits(path: str | Path) -> tuple[list[Row], list[Row]]:
    """Train rows and held-out rows; the latter are empty where there is one split only."""
    path = Path(path)
    if path.is_file():
        return read_rows(path), []
    if not path.is_dir():
        raise ConfigError("task", str(path), f"there is no such file or folder; give a {', '.join(SUFFIXES)} or a data set")
    splits = _disk_splits(path) if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists() else None
    splits = _file_splits(path) if splits is None else splits
    if "train" not in splits:
        found = ", ".join(sorted(splits)) or "nothing"
        raise DataError(f"{path} has no train split (found: {found}); name a file train.jsonl or train.parquet")
    held = next((splits[name] for name in HELD_OUT if name in splits), [])
    return splits["train"], held


def read_rows(path: str | Path) -> list[Row]:
    """The rows of one file, by its ending."""
    path = Path(path)
    if not path.is_file():
        raise ConfigError("task", str(path), "there is no such file")
    if path.suffix == ".parquet":
        rows = _parquet(path)
    elif path.suffix == ".json":
        rows = _json(path)
    else:
        rows = _json_lines(path)
    if not rows:
        raise DataError(f"{path} has no rows")
    return rows


def _json_lines(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: not JSON ({error})") from error
        rows.append(_mapping(row, f"{path}, line {number}"))
    return rows


def _json(path: Path) -> list[Row]:
    try:
        rows = json.loads(path.read_bytes())
    except ValueError as error:
        raise DataError(f"{path}: not JSON ({error}); a file with a row a line is named .jsonl") from error
    if not isinstance(rows, list):
        raise DataError(f"{path}: a list of rows is expected, not {type(rows).__name__}")
    return [_mapping(row, f"{path}, row {i}") for i, row in enumerate(rows)]


def _mapping(row: Any, place: str) -> Row:
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: a row is an object with columns, not {type(row).__name__}")
    return dict(row)


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ModuleNotFoundError as error:
        raise ConfigError("task", str(path), 'Parquet needs pyarrow; pip install "runnel[data]"') from error
    try:
        rows: list[Row] = parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowInvalid, pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a whole Parquet file ({str(error).splitlines()[0]})") from error
    return rows


def _disk_splits(path: Path) -> dict[str, list[Row]]:
    """What `Dataset.save_to_disk` or `DatasetDict.save_to_disk` left."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ConfigError("task", str(path), 'a saved data set needs datasets; pip install "runnel[data]"') from error
    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: the data set cannot be read ({str(error).splitlines()[0]})") from error
    if isinstance(found, datasets.DatasetDict):
        return {str(name): split.to_list() for name, split in found.items()}
    return {"train": found.to_list()}


def _file_splits(path: Path) -> dict[str, list[Row]]:
    files = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES)
    return {p.stem.partition("-")[0]: read_rows(p) for p in files if p.stem.partition("-")[0] in ("train", *HELD_OUT)}
