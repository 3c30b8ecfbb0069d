"""Cuts a file of rows back to where it ended at a checkpoint, even if the file was damaged since.

A checkpoint stores the length of the file and the SHA-256 of its content. If the content is another now, the stored length may
lie in the middle of a row. Then the file is cut behind the last row of the checkpoint's version instead.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from runnel.track.folder import Row, read_rows

BLOCK = 1 << 20
"""Bytes that are hashed at once."""


class FileMark(TypedDict):
    """Where a file ended at a checkpoint."""

    offset: int
    """Its length in bytes."""
    digest: NotRequired[str | None]
    """SHA-256 of its content. Checkpoints of older versions have none."""


def digest_of(path: Path, size: int) -> str:
    """The SHA-256 of the first `size` bytes of a file; empty if it is shorter."""
    found, left = hashlib.sha256(), size
    if path.is_file():
        with path.open("rb") as file:
            while left and (data := file.read(min(left, BLOCK))):
                found.update(data)
                left -= len(data)
    return "" if left else found.hexdigest()


def cut_rows(path: Path, mark: FileMark, version: int) -> str:
    """Cut a file back to `mark`, its end at the checkpoint of `version`. Returns what is lost of it, in words."""
    offset, digest = int(mark["offset"]), mark.get("digest")
    if _is_whole(path, offset, digest):
        if path.is_file():
            os.truncate(path, _behind_checkpoint(path, offset))
        return ""
    size = path.stat().st_size if path.is_file() else None
    if size is not None:
        os.truncate(path, _end_of_kept(path.read_bytes(), version))
    what = "is missing" if size is None else f"is not what it was at the checkpoint of version {version}"
    return f"{path.name} {what}: {_lost(path, offset - (size or 0), version)}"


def cut_behind(path: Path, version: int) -> None:
    """Cut a file back to the last row that is of `version` or an earlier one."""
    if path.is_file():
        os.truncate(path, _end_of_kept(path.read_bytes(), version))


def _is_whole(path: Path, offset: int, digest: str | None) -> bool:
    """Whether the first `offset` bytes are what they were at the checkpoint."""
    if digest is not None:
        return digest_of(path, offset) == digest
    if offset == 0 or not path.is_file() or path.stat().st_size < offset:
        return offset == 0
    with path.open("rb") as file:  # a checkpoint without a digest: at least a row must end there
        file.seek(offset - 1)
        return file.read(1) == b"\n"


def _behind_checkpoint(path: Path, offset: int) -> int:
    """Where to cut: behind the event that reports the checkpoint, which is written right after it."""
    with path.open("rb") as file:
        file.seek(offset)
        line = file.readline()
    row = _row(line)
    return offset + len(line) if line.endswith(b"\n") and row is not None and row.get("what") == "checkpoint" else offset


def _end_of_kept(data: bytes, version: int) -> int:
    """The end of the last whole row that is of `version` or an earlier one, and no `end` row."""
    end = data.rfind(b"\n") + 1
    while end:
        start = data.rfind(b"\n", 0, end - 1) + 1
        row = _row(data[start:end])
        if row is not None and row.get("kind") != "end" and int(row.get("version") or 0) <= version:
            break
        end = start
    return end


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _lost(path: Path, num_bytes: int, version: int) -> str:
    """What is missing from the cut file, in words."""
    updates = [int(row["version"]) for row in read_rows(path)[0] if row.get("kind") == "update"] if path.is_file() else []
    if gaps := gaps_of(updates, version):
        return "no rows of " + ", ".join(f"version {a}" if a == b else f"versions {a} to {b}" for a, b in gaps)
    return f"{num_bytes} bytes are gone" if num_bytes > 0 else "it was changed since"


def gaps_of(versions: Sequence[int], last: int) -> list[tuple[int, int]]:
    """The ranges (first, last) of versions without a row, up to version `last`.

    Rows of a run are equally far apart; the most frequent distance counts as the usual one.

    >>> gaps_of([1, 2, 5], 8), gaps_of([10, 20, 40], 45), gaps_of([], 3)
    ([(3, 4), (6, 8)], [(21, 39)], [(1, 3)])
    """
    steps = Counter(b - a for a, b in zip((0, *versions), versions, strict=False) if b > a)
    usual = min(steps, key=lambda step: (-steps[step], step)) if steps else 1
    pairs = zip((0, *versions), (*versions, last + 1), strict=True)
    return [(a + 1, b - 1) for a, b in pairs if b - a > usual]
