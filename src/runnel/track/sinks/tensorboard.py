"""The TensorBoard sink: event files in tensorboard/ of the run's folder."""

from __future__ import annotations

import time
from pathlib import Path

from runnel.core.clock import Clock, WallClock
from runnel.core.errors import ConfigError
from runnel.track.folder import Row, RunFolder, Settings
from runnel.track.sinks.base import kept_rows, scalars, step_of

MOST_OLD = 1000
"""If a run was started without this sink, about this many of its earlier updates are shown."""


class TensorBoardSink:
    """Writes scalars as TensorBoard events. On resume it hides events that lie after the last row that the run kept.

    An event costs about half a millisecond (its checksum is computed in Python). So if updates come faster than every
    `interval_s`, only the newest is written; metrics.jsonl has them all.
    """

    def __init__(
        self, folder: Path, config: Settings | None = None, *, interval_s: float = 0.1, clock: Clock | None = None
    ) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError("track", "tensorboard", f"cannot import it ({error}); pip install tensorboard") from error
        self._event, self._summary = Event, Summary
        self._clock, self._interval_s = clock or WallClock(), interval_s
        self._due = self._clock.now()
        self._held: Row | None = None
        directory = RunFolder(folder).tensorboard
        again = directory.is_dir() and any(directory.iterdir())
        self._writer = EventFileWriter(str(directory), flush_secs=10)
        kept = kept_rows(folder)
        if again:  # TensorBoard can hide only from a step on: hide the last step that was kept too, and write it again
            last = step_of(kept[-1]) if kept else 0
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time.time(), step=last, session_log=start))
            kept = [row for row in kept if step_of(row) >= last]
        thin = -(-len(kept) // MOST_OLD)
        for number, row in enumerate(kept, start=1 - len(kept)):
            if number % thin == 0 or row["kind"] == "eval":
                self._write(row)

    def row(self, row: Row) -> None:
        now = self._clock.now()
        if row.get("kind") == "update" and now < self._due:
            self._held = row
            return
        if row.get("kind") == "update":
            self._held, self._due = None, now + self._interval_s
        self._write_held()
        self._write(row)

    def flush(self) -> None:
        self._write_held()
        self._writer.flush()

    def close(self) -> None:
        self._write_held()
        self._writer.close()

    def _write_held(self) -> None:
        if self._held is not None:
            self._write(self._held)
            self._held = None

    def _write(self, row: Row) -> None:
        values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row).items()]
        if values:
            summary = self._summary(value=values)
            self._writer.add_event(self._event(wall_time=time.time(), step=step_of(row), summary=summary))
