"""The jobs of a study: started in processes, listened to, told to stop. A process that dies fails its own trial only.

Processes come from a `ProcessHost` (`run/launchers/host.py`): on this machine they are forks of a process that has everything
imported, so that a trial starts in milliseconds; on a Ray cluster they are actors.
"""

from __future__ import annotations

from runnel.core.framing import Message
from runnel.run.launchers.host import ProcessHandle, ProcessHost


class JobPool:
    """The jobs that are under way, by a key of the caller's."""

    def __init__(self, host: ProcessHost) -> None:
        self._host = host
        self.handles: dict[int, ProcessHandle] = {}

    def start(self, key: int, order: Message) -> None:
        self.handles[key] = self._host.start(f"job-{key}", order)

    def events(self, timeout_s: float) -> list[tuple[int, Message]]:
        """What jobs said: `point`, `done`, `failed`. A job that is over has left when its last message is given out."""
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
        """The verdict on a point."""
        if key in self.handles:
            self.handles[key].line.send({"kind": "verdict", "go": go})

    def interrupt(self) -> None:
        """All jobs end at their next version, with a checkpoint."""
        for handle in self.handles.values():
            handle.line.send({"kind": "interrupt"})

    def _drop(self, key: int) -> None:
        handle = self.handles.pop(key, None)
        if handle is not None:
            handle.end(0.0)

    def close(self) -> None:
        for key in list(self.handles):
            self._drop(key)
        self._host.close()
