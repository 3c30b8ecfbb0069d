"""What the supervisor knows about the process of one group, and the errors by which it says that one is lost."""

from __future__ import annotations

import time

from runnel.core.errors import DiskError, DiskFullError, NonFiniteError, WorkerFailure
from runnel.core.framing import Message
from runnel.run.launchers.deadlines import Stage
from runnel.run.launchers.host import ProcessHandle

DISK = {kind.__name__: kind for kind in (DiskError, DiskFullError)}
"""Errors with a message that is enough: the worker's name would add nothing."""


class Child:
    """What the supervisor knows about one group."""

    def __init__(self, name: str, handle: ProcessHandle) -> None:
        self.name, self.handle = name, handle
        self.heard = self.moved = time.monotonic()
        """Time of its last message; time of its last progress (a stage ended, or a part of its work came back)."""
        self.stages: dict[str, Stage] = {}
        self.held: dict[str, float] = {}
        self.waits: dict[str, str] = {}
        self.answers: list[Message] = []
        self.since: float | None = None
        """While the group restarts: the time at which it was lost. Otherwise None."""
        self.is_new = False
        """Whether this is its first start, after `runnel scale` asked for more workers."""


class RunLost(Exception):
    """A group is lost that cannot be restarted alone: the whole run restarts from a checkpoint."""


class RestoreFailed(Exception):
    """A group could not load its part of the checkpoint: the run restarts from the previous checkpoint."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def as_error(message: Message, version: int) -> Exception:
    """The error that a group has sent."""
    if message["type"] == "NonFiniteError":
        return NonFiniteError(message["tensor"], message["step"], message["detail"])
    if message["type"] in DISK:
        return DISK[message["type"]](message["text"])
    text = f"failed with {message['type']}: {message['text']}"
    error = WorkerFailure(message["worker"], text)
    error.add_note(f"raised by worker {message['worker']!r} at version {version}")
    if message["traceback"]:
        error.add_note(message["traceback"])
    return error
