"""Rows on their way to a place that keeps a record of the run of its own, and how much of them it was sent.

A file in the run's folder (`NAME_run.json`) says under which id the place knows the run, and how many rows it may have got.
It is written before they are: after a kill it says too much rather than too little, so a resume never sends a row twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runnel.core.clock import Clock, WallClock
from runnel.track.folder import Row
from runnel.track.sinks.base import kept_rows, scalars

BLOCK = 50
"""Rows that are sent together."""
INTERVAL_S = 5.0
"""Rows wait for others no longer than this."""


class Outbox:
    """The rows of one run that one place is sent. Ask `is_cut` first, then `begin`. `place` names it where it is one of
    several: another one has nothing of the run yet."""

    def __init__(self, folder: Path, name: str, clock: Clock | None = None, *, place: str = "") -> None:
        self._path, self._clock = folder / f"{name}_run.json", clock or WallClock()
        self._kept = kept_rows(folder)
        known: dict[str, Any] = json.loads(self._path.read_text()) if self._path.is_file() else {"id": "", "rows": 0}
        self._place = place
        if known.get("place", place) != place:  # it has nothing of this run; files of earlier versions name none
            known = {"id": "", "rows": 0}
        self.id: str = known["id"]
        """The id of an earlier life of the run; empty if there was none."""
        self._sent: int = known["rows"]
        self.was_closed: bool = known.get("closed", True)
        """Whether the earlier life has ended in order: a place that keeps rows in memory may else have lost some."""
        self._rows: list[Row] = []
        self._send: Callable[[Sequence[Row]], None] = lambda rows: None
        self._due = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether the place may have rows that the run no longer has."""
        return self._sent > len(self._kept)

    def begin(self, new_id: str, send: Callable[[Sequence[Row]], None]) -> None:
        """Send what the place lacks: all that the run has kept where it knows it under another id, else the rest."""
        if new_id != self.id:
            self.id, self._sent = new_id, 0
        self._send, self._rows = send, self._kept[self._sent :]
        self._kept = []
        self.flush()

    def add(self, row: Row) -> None:
        """A new row; sent with others, after a few seconds at most. One without numbers is passed by."""
        if not scalars(row):
            return
        self._rows.append(row)
        if len(self._rows) >= BLOCK or self._clock.now() >= self._due:
            self.flush()

    def flush(self) -> None:
        while self._rows:
            block, self._rows = self._rows[:BLOCK], self._rows[BLOCK:]
            self._sent += len(block)
            self._save()
            self._send(block)
        self._save()
        self._due = self._clock.now() + INTERVAL_S

    def close(self) -> None:
        """Nothing more comes. Call it when the place has all."""
        self._save(closed=True)

    def _save(self, *, closed: bool = False) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({"id": self.id, "rows": self._sent, "closed": closed, "place": self._place}) + "\n")
        new.replace(self._path)
