"""Process hosts: how the supervisor of a run and the job pool of a study start processes, and talk with them.

This machine: `LocalHost` and `LocalGroups` (`local.py`). A Ray cluster: `RayHost` (`ray_host.py`) and `RayGroups` (`ray.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from runnel.core.framing import Message


class ControlLine(Protocol):
    """One end of a control line (on one machine a `core.framing.MessageSocket`)."""

    closed: bool

    def send(self, message: Message) -> None:
        """Send a message. No-op if the other end is gone."""
        ...

    def receive(self) -> list[Message]:
        """The messages that have arrived."""
        ...


class MemberLine(ControlLine, Protocol):
    """The end in the process that was started. The process waits on it and on its doorbell at once."""

    def fileno(self) -> int:
        """A descriptor that is readable when a message has arrived."""
        ...


class ProcessHandle(Protocol):
    """A process, as seen by the process that has started it."""

    @property
    def line(self) -> ControlLine:
        """This side's end of the line to the process."""
        ...

    def waits(self) -> bool:
        """Whether the process has no node to run on yet: a cluster may have lost the resources for it."""
        ...

    def died(self) -> str:
        """How the process ended, in words; empty while it lives. All that it sent can be received once this is not empty."""
        ...

    def stack(self) -> str:
        """The stack of each of its threads, if the process can still write it."""
        ...

    def end(self, timeout_s: float) -> None:
        """Wait `timeout_s` for the process to end by itself, then kill it; close the line."""
        ...


class ProcessHost(Protocol):
    """Starts processes that share nothing: the jobs of a study."""

    def start(self, name: str, order: Message) -> ProcessHandle:
        """Start a process and give it its order. On a cluster it may have to wait for a node."""
        ...

    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        """Wait until one of them may have sent something or ended, at most `timeout_s`."""
        ...


class GroupHost(ProcessHost, Protocol):
    """Starts the process groups of a run, which share memory, doorbells and agents of nodes."""

    def open(self, names: Collection[str]) -> None:
        """Make what the groups `names` share."""
        ...

    def lost(self) -> str:
        """Why all processes are about to end, because their cluster is lost; empty otherwise."""
        ...

    def output(self) -> str:
        """The last lines that the processes have printed."""
        ...

    def close(self) -> None:
        """Free everything that `open` has made. The processes must have ended before."""
        ...
