"""The processes of trials: started on demand, listened to, told to stop; one that dies fails its own trial only.

On this machine a small process (`nursery.py`) that has everything imported forks one child for each job, so that a trial starts
in milliseconds. On a Ray cluster a job is an actor (`ray_crew.py`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Hashable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from runnel.core.errors import WorkerFailure
from runnel.run.launchers.line import Line, Message

ENTRY = "import sys; from runnel.tune.nursery import main; sys.exit(main(int(sys.argv[1])))"
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

    def __init__(self, line: Line, pid: int, nursery: Nursery) -> None:
        self.line, self.pid, self._nursery = line, pid, nursery

    @property
    def closed(self) -> bool:
        return self.line.closed

    def send(self, message: Message) -> None:
        self.line.send(message)

    def receive(self) -> list[Message]:
        return self.line.receive()

    def died(self) -> str:
        code = self._nursery.code_of(self.pid)
        if code is None:
            return "its process was lost"
        name = signal.Signals(-code).name if code < 0 else ""
        memory = " (out of memory?)" if name == "SIGKILL" else ""
        return f"its process was killed by {name}{memory}" if name else f"its process ended with code {code}"

    def end(self) -> None:
        if not self.line.closed:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.line.close()
        self._nursery.code_of(self.pid)


class Nursery:
    """This end of the process that forks jobs; it ends when this one does."""

    def __init__(self, log: Path, threads: int) -> None:
        ours, theirs = socket.socketpair()
        limits = {name: str(threads) for name in THREADS if name not in os.environ}
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", ENTRY, str(theirs.fileno())],
                env={**os.environ, **limits, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        theirs.close()
        self._control, self._codes = ours, dict[int, int]()

    def fork(self, line: socket.socket) -> int:
        """A child at the other end of `line`; its process id."""
        socket.send_fds(self._control, [b"f"], [line.fileno()])
        return int.from_bytes(self._read(8), "big")

    def code_of(self, pid: int) -> int | None:
        """How a child that has ended did so: as of `subprocess`; None if nobody knows."""
        if pid not in self._codes:
            try:
                self._control.sendall(b"w" + pid.to_bytes(8, "big"))
                self._codes[pid] = int.from_bytes(self._read(8), "big", signed=True)
            except OSError:
                return None
        return self._codes[pid]

    def _read(self, num: int) -> bytes:
        data = b""
        while len(data) < num:
            more = self._control.recv(num - len(data))
            if not more:
                raise ConnectionResetError("the process that starts trials is gone")
            data += more
        return data

    def close(self) -> None:
        self._control.close()
        self._process.wait()


class LocalHost:
    """Jobs as processes of this machine."""

    def __init__(self, log: Path, *, threads: int = 1) -> None:
        self._log, self._threads = log, threads
        self._nursery: Nursery | None = None

    def start(self, order: Message) -> LocalSeat:
        for attempt in range(2):
            nursery = self._nursery or Nursery(self._log, self._threads)
            self._nursery = nursery
            ours, theirs = socket.socketpair()
            try:
                pid = nursery.fork(theirs)
            except OSError as error:
                nursery.close()
                self._nursery = None
                if attempt:
                    raise WorkerFailure("nursery", f"does not start ({error}); see {self._log}") from error
                continue
            finally:
                theirs.close()
            seat = LocalSeat(Line(ours), pid, nursery)
            seat.send(order)
            return seat
        raise AssertionError("unreachable")

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
