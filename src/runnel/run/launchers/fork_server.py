"""Processes in milliseconds: a small process that has imported everything, and done nothing, forks one child for each job.

`ForkServer` is this end of it. The other end (`main`) takes single bytes with descriptors: `h` (hold these for every child to
come), `d` (let go of them), `f` (fork a child with these); it tells when a child is born and how one has ended. It ends when
this end does.
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
"""What a child does: it gets the id of its parent, its own descriptors and those that all have; returns its exit code."""


class Fork:
    """A child, from when it was asked for; its exit code is as of `subprocess`."""

    def __init__(self, fork_server: ForkServer) -> None:
        self._fork_server = fork_server
        self.pid: int | None = None
        self.code: int | None = None

    def ended(self) -> bool:
        """Whether it has ended, or was lost with the process that forks."""
        return self._fork_server.gone() or self.code is not None

    def wait(self, timeout_s: float) -> bool:
        """Until it has ended, or the time has passed; returns whether it has."""
        deadline = time.monotonic() + timeout_s
        while not self.ended() and (left := deadline - time.monotonic()) > 0:
            self._fork_server.wait(left)
        return self.ended()

    def signal(self, number: int) -> None:
        """To one that lives. A child stays a zombie until its end was told, so its id is nobody else's."""
        if not self.ended() and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def how(self) -> str:
        """In words, once it has ended."""
        if self.code is None:
            return "was lost with the process that had forked it"
        return f"{exit_text(self.code)} (process {self.pid})"


class ForkServer:
    """This end of the process that forks. `live` is what its children do (`module:function`), `early` what it imports first."""

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
        """Children so far; none ever if it cannot import what it needs."""

    def fileno(self) -> int:
        """A descriptor that can be read when something is told."""
        return self._line.fileno()

    @property
    def closed(self) -> bool:
        """Whether it is known to be gone; `gone` also looks."""
        return self._line.closed

    def hold(self, fds: Sequence[int]) -> None:
        """Children to come get these, in this order, after those that are held already."""
        for start in range(0, len(fds), MOST_FDS):
            self._say(b"h", fds[start : start + MOST_FDS])

    def drop(self) -> None:
        """Children to come get none of what was held."""
        self._say(b"d", ())

    def fork(self, *fds: int) -> Fork:
        """A child with these descriptors."""
        fork = Fork(self)
        self._unborn.append(fork)
        self._say(b"f", fds)
        return fork

    def _say(self, what: bytes, fds: Sequence[int]) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # `gone` tells
            socket.send_fds(self._control, [what], list(fds))

    def gone(self) -> bool:
        """Whether the process that forks has ended, and its children with it; hears what it told before."""
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
        """Until something is told, or the time has passed."""
        if not self._line.closed:
            select.select([self._line], [], [], timeout_s)

    def close(self) -> None:
        """It holds nothing that could be lost."""
        self._line.close()
        self._process.end()


# ------------------------------------------------------------------------------------------------------- the other end
def main(control: str, live: str, *early: str) -> int:
    """Fork children until the other end of `control` is gone. In a child it returns, too: with the child's exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this
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
                    np.random.seed()  # else all children would draw the same
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
