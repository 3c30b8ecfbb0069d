"""The recorded episodes of a run, and the groups of completions that it trained on, read line by line from its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from runnel.track.files import MAX_LINE, is_regular, open_regular, size_of
from runnel.track.folder import Row, RunFolder, read_rows
from runnel.track.history import is_number

NUM_LISTED = 2000
"""Most groups in the list; older ones are left out."""
TEXT = 160
"""Characters of a prompt that the list shows: its end, where prompts of one task differ."""


def recorded_episodes(folder: RunFolder) -> Row:
    """The recorded episodes, the newest first. Those whose file is gone are left out."""
    home = folder.path / "episodes"
    rows, problems = read_rows(home / "index.jsonl") if is_regular(home / "index.jsonl", below=folder.path) else ([], [])
    found = []
    for row in rows:
        name = row.get("file")
        if isinstance(name, str) and Path(name).name == name and is_regular(home / name, below=folder.path):
            found.append(row)
    return {"episodes": found[::-1], "problems": problems}


def episode_file(folder: RunFolder, name: str) -> Path | None:
    """The video called `name`, if it is one of the run's."""
    path = folder.path / "episodes" / name
    if Path(name).name != name or path.suffix not in (".mp4", ".webm") or not is_regular(path, below=folder.path):
        return None
    return path


class CompletionGroups:
    """An index of groups.jsonl: where each group begins, and what a list shows of it. Each refresh reads only new lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: list[tuple[int, int]] = []
        self._heads: list[Row] = []
        self._offset = 0
        self.num_problems = 0

    def refresh(self) -> None:
        """Read the lines that were added."""
        try:
            size = size_of(self._path)
        except OSError:
            size = 0
        if size < self._offset:  # the run went back, or the file was thinned out: read all of it again
            self._places, self._heads, self._offset, self.num_problems = [], [], 0, 0
        if size == self._offset:
            return
        with open_regular(self._path) as file:
            file.seek(self._offset)
            while line := file.readline(MAX_LINE):
                if not line.endswith(b"\n"):
                    break
                self._add(line)
                self._offset += len(line)

    def _add(self, line: bytes) -> None:
        try:
            group = json.loads(line)
            head = _head(group)
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            self.num_problems += 1
            return
        head["number"] = len(self._places)
        self._places.append((self._offset, len(line)))
        self._heads.append(head)

    def heads(self) -> list[Row]:
        """What the list shows of each group, the newest first."""
        return self._heads[::-1][:NUM_LISTED]

    def read(self, number: int) -> Row | None:
        """One whole group; None if it is not there any more."""
        if not 0 <= number < len(self._places):
            return None
        start, size = self._places[number]
        with open_regular(self._path) as file:
            file.seek(start)
            try:
                group = json.loads(file.read(size))
            except ValueError:
                return None
        return dict(group) | {"number": number}


def _head(group: Row) -> Row:
    rows = [row for row in group["rows"] if isinstance(row, Mapping)]
    rewards = [float(row["reward"]) for row in rows if is_number(row.get("reward"))]
    return {
        "version": group.get("version"),
        "source": str(group.get("source") or ""),
        "prompt": str(group.get("prompt") or "")[-TEXT:],
        "rewards": rewards,
        "size": len(rows),
    }
