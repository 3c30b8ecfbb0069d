"""Where the processes of a run are started: what the supervisor asks of this machine, or of a cluster."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from runnel.run.launchers.line import ControlLine


class ProcessHandle(Protocol):
    """A group's process, as whoever started it can handle it."""

    @property
    def line(self) -> ControlLine: ...

    def waits(self) -> bool:
        """Whether it has no place to run yet: a cluster may have lost the room for it."""
        ...

    def died(self) -> str:
        """How the process ended, in words; empty while it lives."""
        ...

    def stack(self) -> str:
        """Where the process is now, if it can still say so."""
        ...

    def end(self, timeout_s: float) -> None:
        """Give the process so long to leave by itself, then kill it, and let go of it."""
        ...


class ProcessHost(Protocol):
    """Starts processes: on this machine, or on a cluster."""

    def open(self, groups: Collection[str]) -> None:
        """Make what all groups share: memory, doorbells, agents of nodes."""
        ...

    def start(self, group: str, *, epoch: int, incarnation: int) -> ProcessHandle: ...

    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        """Until one of them may have sent something, or the time has passed."""
        ...

    def lost(self) -> str:
        """That what all processes run on is gone and about to end them, in words; empty while it is there."""
        ...

    def output(self) -> str:
        """The end of what processes have printed."""
        ...

    def close(self) -> None: ...
