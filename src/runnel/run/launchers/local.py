"""The local launcher: one process per group on this machine, over shared memory."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from runnel.flow.transports.shm import Doorbells
from runnel.run.launchers.child import ORDERS
from runnel.run.launchers.line import Line
from runnel.run.launchers.supervisor import Seat, supervise
from runnel.run.session import Session
from runnel.run.wiring import Edges


def launch(session: Session) -> str:
    """Run to the end; returns the status."""
    return supervise(session, LocalHost(session))


class LocalSeat:
    """A child process."""

    def __init__(self, process: subprocess.Popen[bytes], line: Line, stack_file: Path) -> None:
        self.process, self.line, self.stack_file = process, line, stack_file

    def waits(self) -> bool:
        return False

    def died(self) -> str:
        code = self.process.poll()
        if code is None:
            return ""
        how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"{how} (process {self.process.pid})"

    def stack(self) -> str:
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and self.stack_file.stat().st_size == 0:
            time.sleep(0.02)
        time.sleep(0.1)
        return self.stack_file.read_text() or "(it does not answer)"

    def end(self, timeout_s: float) -> None:
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.line.close()


class LocalHost:
    """Child processes over memory that this one makes and hands down."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fds: dict[str, int] = {}
        self._pipes: dict[str, tuple[int, int]] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def open(self, groups: Collection[str]) -> None:
        self._fds = Edges(self._session.experiment, self._session.groups).allocate()
        self._pipes = Doorbells.make(list(self._session.groups))
        self._scratch = tempfile.TemporaryDirectory(prefix="runnel-")

    def start(self, group: str, *, epoch: int, incarnation: int) -> LocalSeat:
        assert self._scratch is not None, "open it first"
        ours, theirs = socket.socketpair()
        stack_file = Path(self._scratch.name) / f"{group}.stack"
        stack_file.write_text("")
        orders: dict[str, Any] = {
            "run": str(self._session.folder.path.resolve()),
            "group": group,
            "fds": self._fds,
            "pipes": self._pipes,
            "control": theirs.fileno(),
            "parent": os.getpid(),
            "epoch": epoch,
            "incarnation": incarnation,
            "stack_file": str(stack_file),
        }
        handed = [*self._fds.values(), *(fd for pair in self._pipes.values() for fd in pair), theirs.fileno()]
        with self._session.folder.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", "import sys; from runnel.run.launchers.child import main; sys.exit(main())"],
                env={**os.environ, ORDERS: json.dumps(orders), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
                pass_fds=handed,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        theirs.close()
        return LocalSeat(process, Line(ours), stack_file)

    def wait(self, seats: Collection[Seat], timeout_s: float) -> None:
        lines = [s.line for s in seats if isinstance(s, LocalSeat)]
        select.select([line for line in lines if not line.closed], [], [], timeout_s)

    def output(self) -> str:
        return self._session.folder.log.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        for fd in (*self._fds.values(), *(fd for pair in self._pipes.values() for fd in pair)):
            os.close(fd)
        self._fds, self._pipes = {}, {}
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None
