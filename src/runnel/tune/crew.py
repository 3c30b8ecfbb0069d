"""The processes of trials: started on demand, listened to, told to stop; one that dies fails its own trial only.

On this machine a job is the fork of a process that has everything imported (`run/launchers/nursery.py`), so that a trial starts
in milliseconds. On a Ray cluster a job is an actor (`ray_crew.py`).
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
from runnel.run.launchers.line import Line, Message
from runnel.run.launchers.nursery import Fork, Nursery

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

    def wait(self, seats: Collection[Seat], timeout_s: float) -> None: ...

    def close(self) -> None: ...


class LocalSeat:
    """A forked process and the line to it."""

    def __init__(self, line: Line, fork: Fork) -> None:
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
        self._nursery: Nursery | None = None

    def start(self, order: Message) -> LocalSeat:
        ours, theirs = socket.socketpair()
        seat = LocalSeat(Line(ours), self._living().fork(theirs.fileno()))
        theirs.close()
        seat.send(order)
        return seat

    def _living(self) -> Nursery:
        """The process that forks; another one if it is gone."""
        if self._nursery is not None and self._nursery.gone():
            if not self._nursery.births:
                raise WorkerFailure("nursery", f"does not start; see {self._log}")
            self.close()
        if self._nursery is None:
            limits = {name: str(self._threads) for name in THREADS if name not in os.environ}
            self._nursery = Nursery("runnel.tune.process:live", self._log, early=EARLY, env=limits)
        return self._nursery

    def wait(self, seats: Collection[Seat], timeout_s: float) -> None:
        lines = [s.line for s in seats if isinstance(s, LocalSeat) and not s.closed]
        select.select(lines, [], [], timeout_s)

    def close(self) -> None:
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None


class Crew:
    """The jobs that go on, by a key of the caller's."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.seats: dict[Hashable, Seat] = {}

    def start(self, key: Hashable, order: Message) -> None:
        self.seats[key] = self._host.start(order)

    def events(self, timeout_s: float) -> list[tuple[Any, Message]]:
        """What jobs said: `point`, `done`, `failed`. A job that is over has left when its last message is given out."""
        self._host.wait(list(self.seats.values()), timeout_s)
        found: list[tuple[Any, Message]] = []
        for key, seat in list(self.seats.items()):
            for message in seat.receive():
                found.append((key, message))
                if message["kind"] != "point":
                    self._drop(key)
            if key in self.seats and seat.closed:
                found.append((key, {"kind": "failed", "error": seat.died()}))
                self._drop(key)
        return found

    def answer(self, key: Hashable, *, go: bool) -> None:
        """The verdict on a point."""
        if key in self.seats:
            self.seats[key].send({"kind": "verdict", "go": go})

    def interrupt(self) -> None:
        """All jobs end at their next version, with a checkpoint."""
        for seat in self.seats.values():
            seat.send({"kind": "interrupt"})

    def _drop(self, key: Hashable) -> None:
        seat = self.seats.pop(key, None)
        if seat is not None:
            seat.end()

    def close(self) -> None:
        for key in list(self.seats):
            self._drop(key)
        self._host.close()
