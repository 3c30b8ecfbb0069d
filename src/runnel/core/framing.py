"""Framed messages over a socket or a pipe: eight bytes of length, then so many bytes. Nothing is pickled.

`write_frame` and `read_frame` move bytes over a descriptor, and wait. A `MessageSocket` moves JSON objects over a stream
socket, and need not wait. This file imports only the standard library: programs that run without the package load it by its
path.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Message = dict[str, Any]
"""A JSON object."""
HEADER = struct.Struct("<Q")
LIMIT = 1 << 30
"""The largest frame in bytes, unless the caller says otherwise."""
CHUNK = 1 << 20


class TruncatedFrame(EOFError):
    """The other end closed in the middle of a frame."""


class FrameTooLarge(ValueError):
    """A frame is larger than its limit. Where one is received, the other end may also not speak this protocol."""


def pack_frame(*parts: bytes, limit: int = LIMIT) -> bytes:
    """The parts as one frame.

    >>> pack_frame(b"ab", b"c")
    b'\\x03\\x00\\x00\\x00\\x00\\x00\\x00\\x00abc'
    """
    size = sum(map(len, parts))
    _check_size(size, limit)
    return b"".join([HEADER.pack(size), *parts])


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise FrameTooLarge(f"a frame of {size} bytes is larger than the limit of {limit} bytes")


def write_frame(fd: int, *parts: bytes, limit: int = LIMIT) -> None:
    """Write one frame to a descriptor; wait until all of it is written."""
    data = memoryview(pack_frame(*parts, limit=limit))
    while data:  # a pipe takes as much as it has room for
        data = data[os.write(fd, data) :]


def read_frame(fd: int, limit: int = LIMIT) -> bytearray:
    """Wait for one frame from a descriptor. `EOFError`: the other end has closed; `TruncatedFrame`: in the middle of it."""
    header = _read(fd, HEADER.size)
    if not header:
        raise EOFError("the other end has closed")
    (size,) = HEADER.unpack(_whole(header, HEADER.size))
    _check_size(size, limit)
    return _whole(_read(fd, size), size)


def _read(fd: int, size: int) -> bytearray:
    """`size` bytes, or fewer if the other end closes before."""
    found = bytearray()
    while len(found) < size and (part := os.read(fd, min(size - len(found), CHUNK))):
        found += part
    return found


def _whole(data: bytearray, size: int) -> bytearray:
    if len(data) < size:
        raise TruncatedFrame(f"the other end closed in the middle of a frame: {len(data)} of {size} bytes had arrived")
    return data


class MessageSocket:
    """One end of a stream socket that carries JSON objects, one in a frame.

    `send` may be called from several threads. `receive` does not wait, `next_message` does. `encode` makes plain data of values
    that JSON does not have.
    """

    def __init__(self, sock: socket.socket, *, limit: int = LIMIT, encode: Callable[[Any], object] | None = None) -> None:
        self._socket, self._limit, self._encode = sock, limit, encode
        self._lock = threading.Lock()
        self._data = bytearray()
        self._early: list[Message] = []
        self.closed = False
        """The other end is gone, and all that it sent has been received."""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send a message. Nothing happens if the other end is gone: what it sent before may still have to be received."""
        if self.closed:
            return
        data = pack_frame(json.dumps(message, default=self._encode).encode(), limit=self._limit)
        with self._lock, suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def receive(self) -> list[Message]:
        """The messages that have arrived. Sets `closed` when the other end is gone; half a message is then dropped."""
        # A socket with a timeout would wait in `recv`, whatever its flags: `poll` says whether there is something.
        while not self.closed and self._comes(0.0):
            try:
                data = self._socket.recv(CHUNK)
            except ConnectionResetError:
                data = b""
            self.closed = not data
            self._data += data
        early, self._early = self._early, []
        return early + self._unpack()

    def _comes(self, timeout_s: float | None) -> bool:
        """Whether there is something to receive, after a wait of at most `timeout_s`. Not by `select.select`: that refuses
        descriptors from 1024 on, which processes with many sandboxes have."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if timeout_s is None else timeout_s * 1e3))

    def _unpack(self) -> list[Message]:
        found, at = list[Message](), 0
        while len(self._data) - at >= HEADER.size:
            (size,) = HEADER.unpack_from(self._data, at)
            _check_size(size, self._limit)
            start = at + HEADER.size
            if len(self._data) - start < size:
                break
            at = start + size
            found.append(json.loads(self._data[start:at]))
        del self._data[:at]
        return found

    def next_message(self, timeout_s: float | None = None) -> Message | None:
        """Wait for one message; those behind it stay for later. None: the other end is gone. `TimeoutError`: nothing came."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not (found := self.receive()):
            if self.closed and self._data:
                raise TruncatedFrame(f"the other end closed in the middle of a message: {len(self._data)} bytes had arrived")
            if self.closed:
                return None
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._comes(left):
                raise TimeoutError(f"no message came for {timeout_s:g} s")
        self._early = found[1:]
        return found[0]

    def close(self) -> None:
        self.closed = True
        self._socket.close()
