"""The processes of trials: started on demand, listened to, told to stop; one that dies fails its own trial only.

On this machine a job is the fork of a process that has everything imported (`run/launchers/fork_server.py`), so that a trial
starts in milliseconds. On a Ray cluster a job is an actor (`ray_pool.py`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Collection, Hashable
from pathlib import Path
from typing import Any, Protocol

from runnel.core.errors import WorkerFailure
from runnel.core.framing import Message, MessageSocket
from runnel.run.launchers.fork_server import Fork, ForkServer

EARLY = ("gymnasium", "safetensors.torch")
END_TIMEOUT_S = 10.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Seat(Protocol):
    """A job that goes on somewhere."""

    @property
    def closed(self) -> bool: ...

    def send(self, message: Message) -> None: ...

    def receive(self) -> list[Message]: ...

    def died(self) -> str:
        """How it ended, once it is closed."""
        ...

    def end(self) -> None:
        """Let go of it; one that still runs is killed."""
        ...


class Host(Protocol):
    """Where jobs run."""

    def start(self, order: Message) -> Seat: ...

    def wait(self, handles: Collection[Seat], timeout_s: float) -> None: ...

    def close(self) -> None: ...


class LocalProcess:
    """A forked process and the line to it."""

    def __init__(self, line: MessageSocket, fork: Fork) -> None:
        self.line, self._fork = line, fork

    @property
    def closed(self) -> bool:
        return self.line.closed

    def send(self, message: Message) -> None:
        self.line.send(message)

    def receive(self) -> list[Message]:
        return self.line.receive()

    def died(self) -> str:
        if not self._fork.wait(END_TIMEOUT_S) or self._fork.code is None:
            return "its process was lost"
        memory = " (out of memory?)" if self._fork.code == -signal.SIGKILL else ""
        return f"its process {self._fork.how()}{memory}"

    def end(self) -> None:
        if not self.line.closed:
            self._fork.signal(signal.SIGKILL)
        self.line.close()
        self._fork.wait(END_TIMEOUT_S)


class LocalHost:
    """Jobs as processes of this machine."""

    def __init__(self, log: Path, *, threads: int = 1) -> None:
        self._log, self._threads = log, threads
        self._fork_server: ForkServer | None = None

    def start(self, order: Message) -> LocalProcess:
        ours, theirs = socket.socketpair()
        handle = LocalProcess(MessageSocket(ours), self._living().fork(theirs.fileno()))
        theirs.close()
        handle.send(order)
        return handle

    def _living(self) -> ForkServer:
        """The process that forks; another one if it is gone."""
        if self._fork_server is not None and self._fork_server.gone():
            if not self._fork_server.forked:
                raise WorkerFailure("nursery", f"does not start; see {self._log}")
            self.close()
        if self._fork_server is None:
            limits = {name: str(self._threads) for name in THREADS if name not in os.environ}
            self._fork_server = ForkServer("runnel.tune.process:live", self._log, early=EARLY, env=limits)
        return self._fork_server

    def wait(self, handles: Collection[Seat], timeout_s: float) -> None:
        lines = [s.line for s in handles if isinstance(s, LocalProcess) and not s.closed]
        select.select(lines, [], [], timeout_s)

    def close(self) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None


class JobPool:
    """The jobs that go on, by a key of the caller's."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.handles: dict[Hashable, Seat] = {}

    def start(self, key: Hashable, order: Message) -> None:
        self.handles[key] = self._host.start(order)

    def events(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """What jobs said: `point`, `done`, `failed`. A job that is over has left when its last message is given out."""
        self._host.wait(list(self.handles.values()), timeout_s)
        found: list[tuple[Any, Message]] = []
        for key, handle in list(self.handles.items()):
            for message in handle.receive():
                found.append((key, message))
                if message["kind"] != "point":
                    self._drop(key)
            if key in self.handles and handle.closed:
                found.append((key, {"kind": "failed", "error": handle.died()}))
                self._drop(key)
        return found

    def answer(self, key: Hashable, *, go: bool) -> None:
        """The verdict on a point."""
        if key in self.handles:
            self.handles[key].send({"kind": "verdict", "go": go})

    def interrupt(self) -> None:
        """All jobs end at their next version, with a checkpoint."""
        for handle in self.handles.values():
            handle.send({"kind": "interrupt"})

    def _drop(self, key: Hashable) -> None:
        handle = self.handles.pop(key, None)
        if handle is not None:
            handle.end()

    def close(self) -> None:
        for key in list(self.handles):
            self._drop(key)
        self._host.close()
