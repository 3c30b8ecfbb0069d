"""The local launcher: one process per group on this machine, over shared memory. All are forks of one that has imported what
they need (`fork_server.py`)."""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from runnel.core.framing import MessageSocket
from runnel.flow.transports.shm import Doorbells
from runnel.run.launchers.fork_server import Fork, ForkServer
from runnel.run.launchers.host import ProcessHandle
from runnel.run.launchers.supervisor import supervise
from runnel.run.session import Session
from runnel.run.wiring import Edges

EARLY = ("gymnasium", "safetensors.torch", "numba")
EARLY_FOR_TEXT = ("transformers.models.llama.modeling_llama",)
"""Whatever the model, most of that import is what all of them share."""
KILL_TIMEOUT_S = 5.0


def launch(session: Session) -> str:
    """Run to the end; returns the status."""
    host = LocalHost(session)
    try:
        return supervise(session, host)
    finally:
        host.end()


class LocalProcess:
    """A child process."""

    def __init__(self, fork: Fork, line: MessageSocket, stack_file: Path) -> None:
        self.fork, self.line, self.stack_file = fork, line, stack_file

    def waits(self) -> bool:
        return False

    def died(self) -> str:
        return self.fork.how() if self.fork.ended() else ""

    def stack(self) -> str:
        self.fork.signal(signal.SIGUSR1)
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and self.stack_file.stat().st_size == 0:
            time.sleep(0.02)
        time.sleep(0.1)
        return self.stack_file.read_text() or "(it does not answer)"

    def end(self, timeout_s: float) -> None:
        if not self.fork.wait(timeout_s):
            self.fork.signal(signal.SIGKILL)
            self.fork.wait(KILL_TIMEOUT_S)
        self.line.close()


class LocalHost:
    """Child processes over memory that this one makes and hands down."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._fds: dict[str, int] = {}
        self._pipes: dict[str, tuple[int, int]] = {}
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._fork_server: ForkServer | None = None

    def open(self, groups: Collection[str]) -> None:
        self._fds = Edges(self._session.experiment, self._session.groups).allocate()
        self._pipes = Doorbells.make(list(self._session.groups))
        self._scratch = tempfile.TemporaryDirectory(prefix="runnel-")
        if self._fork_server is not None:
            self._fork_server.hold(self._shared())

    def _shared(self) -> list[int]:
        return [*self._fds.values(), *(fd for pair in self._pipes.values() for fd in pair)]

    def _living(self) -> ForkServer:
        """The process that forks; another one if it is gone."""
        if self._fork_server is not None and self._fork_server.gone():
            self.end()
        if self._fork_server is None:
            early = EARLY + (EARLY_FOR_TEXT if self._session.experiment.token_streams else ())
            self._fork_server = ForkServer("runnel.run.launchers.child:live", self._session.folder.log, early=early)
            self._fork_server.hold(self._shared())
        return self._fork_server

    def start(self, group: str, *, epoch: int, incarnation: int) -> LocalProcess:
        assert self._scratch is not None, "open it first"
        ours, theirs = socket.socketpair()
        stack_file = Path(self._scratch.name) / f"{group}.stack"
        stack_file.write_text("")
        line = MessageSocket(ours)
        with self._session.folder.log.open("ab") as log:
            fork = self._living().fork(theirs.fileno(), log.fileno())
        theirs.close()
        line.send(
            {
                "run": str(self._session.folder.path.resolve()),
                "group": group,
                "memory": list(self._fds),
                "groups": list(self._pipes),
                "epoch": epoch,
                "incarnation": incarnation,
                "stack_file": str(stack_file),
            }
        )
        return LocalProcess(fork, line, stack_file)

    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        lines = [s.line for s in handles if isinstance(s, LocalProcess)]
        select.select([line for line in lines if not line.closed], [], [], timeout_s)

    def lost(self) -> str:
        return ""

    def output(self) -> str:
        return self._session.folder.log.read_text(errors="replace")[-2000:]

    def close(self) -> None:
        """Let go of what the groups share; the process that forks stays for the next ones."""
        if self._fork_server is not None:
            self._fork_server.drop()
        for fd in self._shared():
            os.close(fd)
        self._fds, self._pipes = {}, {}
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def end(self) -> None:
        """Nothing is left."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None
