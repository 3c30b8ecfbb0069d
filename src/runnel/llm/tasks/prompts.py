"""Reads the splits of prompts from a file, a folder of files and shards, or a Hugging Face data set on disk.

A file is one split. A folder holds splits by name: `train.jsonl` beside `validation.jsonl`, shards such as
`train-00000-of-00003.parquet`, the same in `data/`, or folders `train/` and `validation/`; or what `datasets` saved there.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from runnel.core.errors import ConfigError, DataError
from runnel.data.rows import SUFFIXES, Row, read_rows

TRAIN = ("train", "training")
HELD_OUT = ("validation", "valid", "val", "dev", "eval", "heldout", "test")
"""Names of a split that is not trained on, in the order of preference: a test set is used only if there is no other."""
SHARD = re.compile(r"[-_.](?:(?:part|shard)[-_.]?)?\d+(?:[-_]of[-_](?P<total>\d+))?$", re.I)


def is_data(name: str) -> bool:
    """Whether `name` is the path of data and not the name of a task or a function."""
    return name.endswith(SUFFIXES) or Path(name).is_dir()


def read_splits(path: str | Path) -> tuple[list[Row], list[Row]]:
    """Train rows and held-out rows; without a held-out split, the latter are empty."""
    path = Path(path)
    if path.is_file():
        return read_rows(path), []
    if not path.is_dir():
        raise ConfigError("task", str(path), f"there is no such file or folder; give a {', '.join(SUFFIXES)} or a data set")
    if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
        splits = _disk_splits(path)
        train, held = _names(splits, path)
        return splits[train], splits.get(held, [])
    files = _files(path)
    train, held = _names(files, path)
    return _joined(files[train]), _joined(files[held]) if held else []


def _names(found: Collection[str], path: Path) -> tuple[str, str]:
    """The names of the train split and of the held-out split ("" if there is none) among the splits `found`."""
    train, held = (next((name for name in names if name in found), "") for names in (TRAIN, HELD_OUT))
    if train:
        return train, held
    below = sorted({p.parent.relative_to(path).as_posix() for p in path.glob("*/**/train*") if p.suffix in SUFFIXES})
    fix = f"give one of its folders: {', '.join(below)}" if below else "name a file train.jsonl or train.parquet"
    raise DataError(f"{path} has no train split (found: {', '.join(sorted(found)) or 'nothing'}); {fix}")


# ----------------------------------------------------------------------------------------------------------------- shards
def _files(path: Path) -> dict[str, list[Path]]:
    """Files by split, each in order: from the folder itself, from `data/`, and from folders that have the name of a split."""
    out: dict[str, list[Path]] = {}
    places = [path, path / "data"]
    places += [place / name for place in (path, path / "data") for name in (*TRAIN, *HELD_OUT)]
    for place in places:
        files = [p for p in place.iterdir() if p.suffix in SUFFIXES] if place.is_dir() else []
        for file in sorted(files, key=_order):
            split = place.name if place not in places[:2] else SHARD.sub("", file.stem)
            if split in (*TRAIN, *HELD_OUT):
                out.setdefault(split, []).append(file)
    for split, shards in out.items():
        _check_shards(split, shards, path)
    return out


def _order(file: Path) -> list[tuple[int, str]]:
    """A sort key that puts shard 2 before shard 10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", file.name)]


def _check_shards(split: str, files: list[Path], path: Path) -> None:
    """Raise a `DataError` if several files of a split are not the parts of one whole, or some parts are missing."""
    if len({(f.suffix, f.parent) for f in files}) > 1:
        names = ", ".join(f.relative_to(path).as_posix() for f in files[:4])
        raise DataError(f"{path}: the split {split!r} is there more than once ({names}); keep one form of it")
    found = [SHARD.search(f.stem) for f in files]
    if len(files) > 1 and files[0].parent.name != split and not all(found):
        names = ", ".join(f.name for f in files[:4])
        raise DataError(f"{path}: a whole {split!r} stands beside parts of one ({names}); keep one form of it")
    totals = {int(m["total"]) for m in found if m is not None and m["total"]}
    if totals and totals != {len(files)}:
        have = ", ".join(f.name for f in files[:4])
        raise DataError(f"{path}: {len(files)} of {max(totals)} shards of {split!r} are there ({have}); fetch the others")


def _joined(files: list[Path]) -> list[Row]:
    """The rows of all shards, in order; all must have the same columns."""
    out: list[Row] = []
    first: dict[str, None] = {}
    for file in files:
        rows = read_rows(file)
        columns = dict.fromkeys(name for row in rows for name in row)
        first = first or columns
        if odd := sorted(columns.keys() ^ first.keys()):
            raise DataError(
                f"{file} has the columns {', '.join(columns)}, and {files[0].name} has {', '.join(first)}; shards of one split "
                f"have the same columns: add or remove {', '.join(odd)}"
            )
        out += rows
    return out


def _disk_splits(path: Path) -> dict[str, list[Row]]:
    """The splits of a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ConfigError("task", str(path), 'a saved data set needs datasets; pip install "runnel[data]"') from error
    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: the data set cannot be read ({str(error).splitlines()[0]})") from error
    splits = found if isinstance(found, datasets.DatasetDict) else {"train": found}
    return {
        str(name): [Row(row, f"{path}, {name} row {i}") for i, row in enumerate(split.to_list())]
        for name, split in splits.items()
    }
