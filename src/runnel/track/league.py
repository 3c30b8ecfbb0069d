"""league.jsonl: the pool of a run of self-play, one state of it a line: members, results, ratings."""

from __future__ import annotations

from pathlib import Path

from runnel.track.files import open_append, replace_file
from runnel.track.folder import Row, read_rows
from runnel.track.sinks.jsonl import line_of


class LeagueFile:
    """Rows are only appended. A run that goes on from a checkpoint writes those behind it again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, row: Row) -> None:
        """Append a row."""
        with open_append(self.path) as file:
            file.write(line_of(row))

    def cut(self, version: int) -> None:
        """Remove rows that are newer than `version`, at which the run is resumed, and half a line that a kill has left."""
        if self.path.is_file():
            rows = [row for row in read_rows(self.path)[0] if row.get("version", 0) <= version]
            replace_file(self.path, b"".join(map(line_of, rows)))
