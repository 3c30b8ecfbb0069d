"""The control line between a supervisor and a group: JSON objects."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from typing import Any, Protocol

Message = dict[str, Any]


class ControlLine(Protocol):
    """One end of a line, whatever carries it."""

    closed: bool

    def send(self, message: Message) -> None: ...

    def receive(self) -> list[Message]: ...


class MemberLine(ControlLine, Protocol):
    """The group's end, which it waits on beside its doorbell."""

    def fileno(self) -> int:
        """A descriptor that can be read when something has arrived."""
        ...


class Line:
    """One end over a socket pair, one object a line.

    `send` may be called from several threads; `receive` gives what has arrived, without waiting."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock, self._left = sock, threading.Lock(), b""
        self._early: list[Message] = []
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """If the other end is gone nothing happens: `receive` tells, once what it sent before has been read."""
        if self.closed:
            return
        data = json.dumps(message).encode() + b"\n"
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def receive(self) -> list[Message]:
        """Messages that are there; sets `closed` when the other end is gone."""
        while not self.closed and select.select([self._socket], [], [], 0)[0]:
            try:
                data = self._socket.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            self.closed = not data
            self._left += data
        *lines, self._left = self._left.split(b"\n")
        early, self._early = self._early, []
        return [*early, *(json.loads(line) for line in lines)]

    def first(self) -> Message | None:
        """Wait for one message, and leave those behind it for `receive`; None if the other end is gone."""
        while not (found := self.receive()) and not self.closed:
            select.select([self._socket], [], [])
        self._early = found[1:]
        return found[0] if found else None

    def close(self) -> None:
        self.closed = True
        self._socket.close()
