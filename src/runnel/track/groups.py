"""groups.jsonl: groups of completions as the learner trained on them, one a line, for a person to look at."""

from __future__ import annotations

from pathlib import Path

from runnel.track.folder import Row, read_rows
from runnel.track.sinks import encode

MAX_BYTES = 20_000_000


class GroupFile:
    """A file that stays small: beyond `max_bytes` every second group goes, so what is left spans the whole run."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self.path, self._max_bytes = path, max_bytes

    def add(self, row: Row) -> None:
        """Append a group."""
        with self.path.open("ab") as file:
            file.write(encode(row).encode(errors="backslashreplace") + b"\n")
            size = file.tell()
        if size > self._max_bytes:
            rows = read_rows(self.path)[0]
            self._rewrite(rows[:-1:2] + rows[-1:])

    def cut(self, version: int) -> None:
        """Take back what was written after `version`: the run goes on from there. So does half a line of a killed run."""
        if self.path.is_file():
            self._rewrite([row for row in read_rows(self.path)[0] if row.get("version", 0) <= version])

    def _rewrite(self, rows: list[Row]) -> None:
        """Write beside, then rename: a reader sees the old file or the new one."""
        new = self.path.with_name(self.path.name + ".new")
        new.write_bytes(b"".join(encode(row).encode(errors="backslashreplace") + b"\n" for row in rows))
        new.replace(self.path)
