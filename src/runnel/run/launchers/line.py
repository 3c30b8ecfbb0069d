"""The control line between whoever starts processes and one of them: JSON objects, over a socket or over Ray's calls."""

from __future__ import annotations

from typing import Protocol

from runnel.core.framing import Message


class ControlLine(Protocol):
    """One end of a line, whatever carries it (`core.framing.MessageSocket` on one machine)."""

    closed: bool

    def send(self, message: Message) -> None:
        """Send a message. Nothing happens if the other end is gone."""
        ...

    def receive(self) -> list[Message]:
        """The messages that have arrived."""
        ...


class MemberLine(ControlLine, Protocol):
    """The end in the process that was started. It is waited on beside the doorbell."""

    def fileno(self) -> int:
        """A descriptor that can be read when something has arrived."""
        ...
