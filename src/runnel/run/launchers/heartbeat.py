"""Heartbeats of a process: several times a second, the stages of its workers and whether they make progress."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runnel.core.clock import Clock
from runnel.core.worker import Worker, num_progressed

BEAT_S = 0.25
STANDSTILL_S = 2.0
"""A loop that runs many times a second counts as suspended from outside after a gap longer than this."""


class Heartbeat:
    """Reads the state of a process's workers from another thread.

    The age of a stage is the time since it began or since it last made progress (`core/worker.py`), whichever is later.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.workers: Sequence[Worker] = ()
        """Empty until they are built."""
        self.writing: Path | None = None
        """The folder of the checkpoint that is being written. Its growth is progress: one call may write a large file."""
        self._work, self._seen = (num_progressed(), -1), dict[str, tuple[str, float]]()
        self._looked = self._came_back = clock.now()

    def look(self) -> dict[str, Any]:
        """The fields of one heartbeat.

        - `stages`: for each worker its stage, the stage's age, and whether the worker is in it for the first time.
        - `held`: for each worker that waits for other ranks inside a stage, for how long.
        - `cpu_s`: for how long the process has computed since its start.
        - `progressed`: whether work came back since the last call. `moved`: that, or a stage changed.
        """
        now = self._clock.now()
        progressed, moved = self._changes()
        if progressed or now - self._looked > BEAT_S + STANDSTILL_S:  # the whole process was suspended: no stage hangs
            self._came_back = now
        self._looked = now
        stages, held = {}, {}
        for worker in self.workers:
            name, since = worker.timer.current
            stages[worker.name] = [name, now - max(since, self._came_back), not worker.timer.knows(name)]
            if (start := worker.timer.held) is not None:
                held[worker.name] = now - start
        return {"stages": stages, "held": held, "cpu_s": time.process_time(), "progressed": progressed, "moved": moved}

    def _changes(self) -> tuple[bool, bool]:
        work = num_progressed(), self._written()
        seen = {w.name: w.timer.current for w in self.workers}
        progressed, moved = work != self._work, seen != self._seen
        self._work, self._seen = work, seen
        return progressed, progressed or moved

    def _written(self) -> int:
        folder = self.writing
        if folder is None:
            return -1
        try:
            return sum(path.stat().st_size for path in folder.iterdir())
        except OSError:  # the checkpoint was renamed or dropped in this moment
            return -1
