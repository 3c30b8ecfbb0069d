"""The part that sinks for trackers share. A tracker keeps its own record of the run; the sink notes how many rows it was sent.

A file in the run's folder (`NAME_run.json`) holds the id under which the tracker knows the run, and how many rows it may have
received. The file is written before the rows are sent. So after a kill the number is too large rather than too small, and a
resume never sends a row twice.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from runnel.core.clock import WallClock
from runnel.track.folder import Row
from runnel.track.sinks.base import kept_rows, scalars

BLOCK = 50
"""Rows in one message."""
INTERVAL_S = 5.0
"""Longest time in seconds that a row waits to be sent together with others."""


class TrackerSink(ABC):
    """A sink for a tracker. A subclass calls `_begin` when it knows the tracker's id of the run.

    `place` names the project at the tracker. A run that was resumed with another project is new there.
    """

    def __init__(self, folder: Path, name: str, *, place: str) -> None:
        self._path, self._clock, self._place = folder / f"{name}_run.json", WallClock(), place
        self._kept = kept_rows(folder)
        known: Row = json.loads(self._path.read_text()) if self._path.is_file() else {"id": "", "rows": 0}
        if known.get("place", place) != place:  # another project has no row of this run; files of older versions name none
            known = {"id": "", "rows": 0}
        self._id: str = known["id"]
        """The id that the tracker gave the run before a resume; empty for a new run."""
        self._sent: int = known["rows"]
        self._is_cut = self._sent > len(self._kept)
        """Whether the tracker may have rows that the run no longer has."""
        self._was_closed: bool = known.get("closed", True)
        """Whether the sink was closed properly before the resume. If not, a tracker that keeps rows in memory may have lost
        some."""
        self._rows: list[Row] = []
        self._due = 0.0

    def _begin(self, new_id: str) -> None:
        """Send the rows that the tracker lacks: all rows that the run kept if `new_id` is new, else those that were not
        sent."""
        if new_id != self._id:
            self._id, self._sent = new_id, 0
        self._rows, self._kept = self._kept[self._sent :], []
        self.flush()

    def row(self, row: Row) -> None:
        """Add a row. It is sent together with others, after a few seconds at most. A row without numbers is ignored."""
        if not scalars(row):
            return
        self._rows.append(row)
        if len(self._rows) >= BLOCK or self._clock.now() >= self._due:
            self.flush()

    def flush(self) -> None:
        while self._rows:
            block, self._rows = self._rows[:BLOCK], self._rows[BLOCK:]
            self._sent += len(block)
            self._save()  # before sending: see the module's docstring
            self._send(block)
        self._save()
        self._due = self._clock.now() + INTERVAL_S

    def close(self) -> None:
        self.flush()
        self._finish()
        self._save(closed=True)

    @abstractmethod
    def _send(self, rows: Sequence[Row]) -> None:
        """Send rows to the tracker."""

    def _finish(self) -> None:
        """Tell the tracker that the run has ended."""

    def _save(self, *, closed: bool = False) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"id": self._id, "rows": self._sent, "closed": closed, "place": self._place}) + "\n")
        new.replace(self._path)
