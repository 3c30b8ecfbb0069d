"""The control line between a supervisor and one process: JSON objects, over a socket or over calls of Ray."""

from __future__ import annotations

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
