"""The jobs of a study: started in processes, listened to, told to stop. A process that dies fails its own trial only.

Processes come from a `ProcessHost` (`run/launchers/host.py`): on this machine they are forks of a process that has everything
imported, so that a trial starts in milliseconds; on a Ray cluster they are actors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from runnel.core.framing import Message
from runnel.run.launchers.host import ProcessHandle, ProcessHost

Item = TypeVar("Item")
WAIT_S = 0.5


class JobPool:
    """The jobs that run now, by a key of the caller's."""

    def __init__(
        self, host: ProcessHost, *, workers: int, interrupted: threading.Event, show: Callable[[], None] = lambda: None
    ) -> None:
        """At most `workers` jobs run at once. `show` brings the screen up to date; it is called every `WAIT_S` or sooner."""
        self._host, self._workers, self._interrupted, self._show = host, workers, interrupted, show
        self.handles: dict[int, ProcessHandle] = {}

    def work(
        self, due: Callable[[], Item | None], begin: Callable[[Item], None], handle: Callable[[int, Message], None]
    ) -> str:
        """Begin each job that `due` gives, at most `workers` at a time, until all have ended and it gives none: `finished`. It
        is asked whenever a worker is free; None: nothing is due now.

        After an interruption no job begins, and those that run end at their next version, with a checkpoint: `interrupted`.
        """
        told = False
        while True:
            while not self._interrupted.is_set() and len(self.handles) < self._workers:
                if (job := due()) is None:
                    break
                begin(job)
            if not self.handles:
                return "interrupted" if self._interrupted.is_set() else "finished"
            if self._interrupted.is_set() and not told:
                told = True
                for process in self.handles.values():
                    process.line.send({"kind": "interrupt"})
            for key, message in self.events(WAIT_S):
                handle(key, message)
            self._show()

    def start(self, key: int, order: Message) -> None:
        self.handles[key] = self._host.start(f"job-{key}", order)

    def events(self, timeout_s: float) -> list[tuple[int, Message]]:
        """Messages of jobs: `point`, `done`, `failed`. A job that sent its last message is removed from the pool."""
        self._host.wait(list(self.handles.values()), timeout_s)
        found: list[tuple[int, Message]] = []
        for key, handle in list(self.handles.items()):
            how = handle.died()  # asked first: what a dead process has sent is all there, its last message too
            for message in handle.line.receive():
                found.append((key, message))
                if message["kind"] != "point":
                    self._drop(key)
            if key in self.handles and how:
                memory = " (out of memory?)" if "SIGKILL" in how else ""
                found.append((key, {"kind": "failed", "error": f"its process {how}{memory}"}))
                self._drop(key)
        return found

    def answer(self, key: int, *, go: bool) -> None:
        """Send the verdict on a point: whether the job goes on."""
        if key in self.handles:
            self.handles[key].line.send({"kind": "verdict", "go": go})

    def _drop(self, key: int) -> None:
        handle = self.handles.pop(key, None)
        if handle is not None:
            handle.end(0.0)

    def close(self) -> None:
        for key in list(self.handles):
            self._drop(key)
