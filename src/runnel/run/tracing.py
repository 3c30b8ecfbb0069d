"""A run that is traced: where its processes record, and what the launching one adds (events of the run, its pace)."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from runnel.core.clock import Clock
from runnel.core.state import WorkerEvent
from runnel.core.trace import TraceWriter
from runnel.core.worker import Worker
from runnel.graphs.run_config import RunConfig
from runnel.track.folder import Row, RunFolder

LAUNCHER = "launcher"
COUNTS_S = 0.05
"""Counters are recorded no more often than this."""


def open_recorder(
    config: RunConfig, folder: Path, group: str, clock: Clock, *, epoch: int = 0, incarnation: int = 0
) -> TraceWriter | None:
    """The recorder of one process, in a file of its own; None where the run is not traced."""
    if not config.trace:
        return None
    about = {"group": group, "epoch": epoch, "incarnation": incarnation}
    place, number = RunFolder(folder).trace, 0
    while True:
        path = place / f"{group}-{epoch}-{incarnation}-{number}.bin"
        try:
            return TraceWriter(path, clock, about=about, max_bytes=config.trace_mb << 20)
        except FileExistsError:
            number += 1


class UpdateCounts:
    """Writes an update's stream and staleness numbers into the trace as counters, and lost rows as instants."""

    def __init__(self, recorder: TraceWriter) -> None:
        self._recorder = recorder
        self._due = 0.0
        self._lost: dict[str, int] = {}

    def add(self, worker: Worker, event: WorkerEvent) -> None:
        """One update of a trainer, with the accounts of its streams."""
        now = self._recorder.now()
        if now < self._due:
            return
        self._due, track = now + COUNTS_S, self._recorder.track(worker.name)
        for stream, counts in event["streams"].items():
            for part in ("dropped", "cancelled"):
                for reason, rows in counts[part].items():
                    key = f"{stream}: rows {part}, {reason}"
                    if more := rows - self._lost.get(key, 0):
                        track.instant(f"{key} (+{more})")
                        self._lost[key] = rows
        track.count("version", event["version"])
        for name in ("staleness/mean", "staleness/max"):
            if name in event["metrics"]:
                track.count(name, float(event["metrics"][name]))
        for stream, counts in event["streams"].items():
            track.count(f"{stream} queued", counts["queued"])
            track.count(f"{stream} in flight", counts["in_flight"])


class TraceSession(Protocol):
    """The part of `Session` that a trace needs."""

    clock: Clock
    epoch: int


class LauncherTrace:
    """A sink that writes the rows of the launching process into the trace."""

    def __init__(self, config: RunConfig, folder: Path, session: TraceSession) -> None:
        recorder = open_recorder(config, folder, LAUNCHER, session.clock, epoch=session.epoch)
        assert recorder is not None, "the run is traced"
        self._recorder, self._track = recorder, recorder.track("run")
        self._due = 0.0

    def row(self, row: Row) -> None:
        kind = row.get("kind")
        if kind == "update":
            if (now := self._recorder.now()) < self._due:
                return
            self._due = now + COUNTS_S
            for name in ("steps_per_s", "tokens_per_s"):
                if rate := row["time"].get(name):
                    self._track.count(name, rate)
        elif kind == "eval":
            self._track.instant(f"evaluation of version {row['version']}: mean {row['mean']:.4g}")
        elif kind == "event":
            self._track.instant(str(row["text"]).partition("\n")[0])
        elif kind == "end":
            self._track.instant(f"end: {row['status']}")

    def flush(self) -> None:
        self._recorder.flush()

    def close(self) -> None:
        self._recorder.close()
