"""What a process of a run says of itself, several times a second: the stages of its workers, and whether work comes back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runnel.core.clock import Clock
from runnel.core.worker import Worker, num_progressed

BEAT_S = 0.25
STANDSTILL_S = 2.0
"""A loop that turns many times a second and was away for longer than this has been stopped from outside."""


class Heartbeat:
    """Looks at the workers of a process from another thread, and only reads: the age of a stage is the time since it began, or
    since a piece of its work came back (`core/worker.py`), whichever is later."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.workers: Sequence[Worker] = ()
        """Empty while they are made."""
        self.writing: Path | None = None
        """A folder that grows while a checkpoint is written: large files are written in one call."""
        self._work, self._seen = (num_progressed(), -1), dict[str, tuple[str, float]]()
        self._looked = self._came_back = clock.now()

    def look(self) -> dict[str, Any]:
        """Of each worker the stage, its age, and whether it is the first time; who waits for other ranks inside a stage, and
        for how long; whether work came back since the last look (`progressed`), or at least a stage changed (`moved`)."""
        now = self._clock.now()
        progressed, moved = self._changes()
        if progressed or now - self._looked > BEAT_S + STANDSTILL_S:  # all of the process stood still: no stage hangs
            self._came_back = now
        self._looked = now
        stages, held = {}, {}
        for worker in self.workers:
            name, since = worker.timer.current
            stages[worker.name] = [name, now - max(since, self._came_back), not worker.timer.knows(name)]
            if (start := worker.timer.held) is not None:
                held[worker.name] = now - start
        return {"stages": stages, "held": held, "progressed": progressed, "moved": moved}

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
        except OSError:  # it was renamed, or given up, just now
            return -1
