"""A fork server: a small process that has imported everything forks one child for each job, in milliseconds.

`ForkServer` is the client. The server (`main`) receives single bytes with descriptors: `h` (hold these for every later child),
`d` (drop the held ones), `f` (fork a child with these). It reports the start and the end of each child. It ends when the
client ends.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from runnel.core.framing import MessageSocket
from runnel.core.process import ChildProgram, exit_text, leave_sigterm_to_the_run
from runnel.core.resolve import load_object

ENTRY = "import sys; from runnel.run.launchers.fork_server import main; sys.exit(main(*sys.argv[1:]))"
MOST_FDS = 200
"""Descriptors of one message; the kernel takes 253."""
Live = Callable[[int, list[int], list[int]], int]
"""The main function of a child: (id of its parent, its own descriptors, descriptors of all children) -> exit code."""


class Fork:
    """A child, from its request on. `code` is its exit code as in `subprocess`; None while unknown."""

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self.pid: int | None = None
        self.code: int | None = None

    def ended(self) -> bool:
        """Whether the child has ended, or was lost with the fork server."""
        return self._fork_server.gone() or self.code is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the child to end; returns whether it has."""
        deadline = time.monotonic() + timeout_s
        while not self.ended() and (left := deadline - time.monotonic()) > 0:
            self._fork_server.wait(left)
        return self.ended()

    def signal(self, number: int) -> None:
        """Send a signal to the child if it lives."""
        # The child is a zombie until the server has reported its end, so no other process can have its id.
        if not self.ended() and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def how(self) -> str:
        """How the child ended, in words."""
        if self.code is None:
            return "was lost with its fork server"
        return f"{exit_text(self.code)} (process {self.pid})"


class ForkServer:
    """Client of a fork server. `live` is the main function of its children (`module:function`); `early` is imported first."""

    def __init__(self, live: str, log: Path, *, early: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as file:
            self._process = ChildProgram(
                [sys.executable, "-c", ENTRY, str(theirs.fileno()), live, *early],
                env={**os.environ, **(env or {}), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                pass_fds=[theirs.fileno()],
                stdout=file,
                stderr=file,
            )
        self._control, self._line = ours, MessageSocket(ours)
        self._unborn: list[Fork] = []
        self._forks: dict[int, Fork] = {}
        self.forked = 0
        """Number of children so far. It stays 0 if an import of the server fails."""

    def fileno(self) -> int:
        """A descriptor that is readable when the server has reported something."""
        return self._line.fileno()

    @property
    def closed(self) -> bool:
        """Whether the server is known to be gone; `gone` also reads its messages."""
        return self._line.closed

    def hold(self, fds: Sequence[int]) -> None:
        """Give these descriptors to every later child, in this order, after those that are held already."""
        for start in range(0, len(fds), MOST_FDS):
            self._say(b"h", fds[start : start + MOST_FDS])

    def drop(self) -> None:
        """Drop the held descriptors: later children do not get them."""
        self._say(b"d", ())

    def fork(self, *fds: int) -> Fork:
        """Request a child with these descriptors."""
        fork = Fork(self)
        self._unborn.append(fork)
        self._say(b"f", fds)
        return fork

    def _say(self, what: bytes, fds: Sequence[int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `gone` reports it
            socket.send_fds(self._control, [what], list(fds))

    def gone(self) -> bool:
        """Read the server's messages; returns whether the server has ended, and its children with it."""
        for message in self._line.receive():
            if "born" in message:
                fork = self._unborn.pop(0)
                fork.pid = message["born"]
                self._forks[message["born"]] = fork
                self.forked += 1
            else:
                self._forks.pop(message["ended"]).code = message["code"]
        return self._line.closed

    def wait(self, timeout_s: float) -> None:
        """Wait until the server reports something, at most `timeout_s`."""
        if not self._line.closed:
            select.select([self._line], [], [], timeout_s)

    def close(self) -> None:
        """End the server. It holds no state that could be lost."""
        self._line.close()
        self._process.end()


# ----------------------------------------------------------------------------------------------------------- the server
def main(control: str, live: str, *early: str) -> int:
    """Fork children until the client is gone. In a child this function returns too, with the child's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this
    leave_sigterm_to_the_run()
    do: Live = load_object(live, "live")
    for name in early:
        with suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    return _fork_until_closed(socket.socket(fileno=int(control)), do)


def _fork_until_closed(control: socket.socket, live: Live) -> int:
    me, line, held = os.getpid(), MessageSocket(control), list[int]()
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno())
    while True:
        ready = select.select([control, woken], [], [])[0]
        if woken in ready:
            woken.recv(4096)
            _tell_ended(line)
        if control not in ready:
            continue
        what, fds, _, _ = socket.recv_fds(control, 1, MOST_FDS)
        match what:
            case b"h":
                held += fds
            case b"d":
                _close(held)
                held = []
            case b"f":
                pid = os.fork()
                if not pid:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for sock in (control, woken, wake):
                        sock.close()
                    np.random.seed()  # otherwise all children would draw the same numbers
                    return live(me, fds, held)
                _close(fds)
                line.send({"born": pid})
            case _:
                return 0


def _tell_ended(line: MessageSocket) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            line.send({"ended": found[0], "code": os.waitstatus_to_exitcode(found[1])})


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
