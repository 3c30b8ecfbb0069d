"""groups.jsonl and conversations.jsonl: what a language model wrote, one group or conversation a line, for the board."""

from __future__ import annotations

from pathlib import Path

from runnel.track.files import replace_file
from runnel.track.folder import Row, read_rows
from runnel.track.history import is_number
from runnel.track.sinks.jsonl import line_of

MAX_BYTES = 20_000_000


class GroupFile:
    """Keeps the file below `max_bytes`: when it is larger, every second group is removed, so the rest still covers the run."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path, self._max_bytes = path, max_bytes

    def add(self, row: Row) -> None:
        """Append a group."""
        with self.path.open("ab") as file:
            file.write(line_of(row))
            size = file.tell()
        if size > self._max_bytes:
            rows = read_rows(self.path)[0]
            self._rewrite(rows[:-1:2] + rows[-1:])

    def cut(self, last: int, *, by: str = "version") -> None:
        """Remove groups whose `by` is above `last`, at which the run is resumed, and half a line that a kill has left."""
        if self.path.is_file():
            self._rewrite([row for row in read_rows(self.path)[0] if is_number(at := row.get(by, 0)) and at <= last])

    def _rewrite(self, rows: list[Row]) -> None:
        replace_file(self.path, b"".join(map(line_of, rows)))
