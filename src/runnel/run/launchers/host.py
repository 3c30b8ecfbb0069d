"""Where processes are started: what the supervisor of a run and the pool of a study ask of this machine, or of a cluster.

This machine: `LocalHost` (`local.py`). A Ray cluster: `RayHost` (`ray_host.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from runnel.core.framing import Message
from runnel.run.launchers.line import ControlLine


class ProcessHandle(Protocol):
    """A process, as whoever started it can handle it."""

    @property
    def line(self) -> ControlLine:
        """Our end of the line to the process."""
        ...

    def waits(self) -> bool:
        """Whether the process has no place to run yet: a cluster may have lost the room for it."""
        ...

    def died(self) -> str:
        """How the process ended, in words; empty while it lives. All that it sent can be received once this is not empty."""
        ...

    def stack(self) -> str:
        """The stack of each of its threads, if the process can still write it."""
        ...

    def end(self, timeout_s: float) -> None:
        """Give the process `timeout_s` to leave by itself, then kill it, and close the line."""
        ...


class ProcessHost(Protocol):
    """Starts processes: on this machine, or on a cluster."""

    def open(self, names: Collection[str]) -> None:
        """Make what the processes `names` of a run share: memory, doorbells, agents of nodes."""
        ...

    def start(self, name: str, order: Message) -> ProcessHandle:
        """Start a process, and give it its order. It may have to wait for a place."""
        ...

    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        """Wait until one of them may have sent something or ended, at most `timeout_s`."""
        ...

    def lost(self) -> str:
        """Why all processes are about to end: what they run on is gone. Empty while it is there."""
        ...

    def output(self) -> str:
        """The end of what the processes have printed."""
        ...

    def close(self) -> None:
        """Let go of what `open` made. The processes must have been ended before."""
        ...
