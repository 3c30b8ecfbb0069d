"""Processes on this machine, and the local launcher: one process for each group of a run, over shared memory.

All processes are forks of one that has imported what they need (`fork_server.py`).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from runnel.core.errors import WorkerFailure
from runnel.core.framing import Message, MessageSocket
from runnel.core.process import last_text
from runnel.flow.transports.shm import Doorbells
from runnel.run.launchers.fork_server import Fork, ForkServer
from runnel.run.launchers.host import ProcessHandle
from runnel.run.launchers.supervisor import supervise
from runnel.run.session import Session
from runnel.run.wiring import Edges

EARLY = ("gymnasium", "safetensors.torch", "numba")
EARLY_FOR_TEXT = ("transformers.models.llama.modeling_llama",)
"""Imported for every model family: most of this import is shared by all of them."""
KILL_TIMEOUT_S = 5.0
STACK_TIMEOUT_S = 2.0


def launch(session: Session) -> str:
    """Run to the end; returns the status."""
    host = LocalGroups(session)
    try:
        return supervise(session, host)
    finally:
        host.end()


class LocalProcess:
    """A `ProcessHandle` on this machine: a fork, and the line to it."""

    def __init__(self, fork: Fork, line: MessageSocket, stack_file: Path) -> None:
        self.fork, self.line, self.stack_file = fork, line, stack_file

    def waits(self) -> bool:
        return False

    def died(self) -> str:
        return self.fork.how() if self.fork.ended() else ""

    def stack(self) -> str:
        self.fork.signal(signal.SIGUSR1)  # on this signal the process writes its stacks to the file (see `child.begin`)
        deadline = time.monotonic() + STACK_TIMEOUT_S
        while time.monotonic() < deadline and self.stack_file.stat().st_size == 0:
            time.sleep(0.02)
        time.sleep(0.1)  # the first lines are there; the rest takes a moment
        return self.stack_file.read_text() or "(the process does not answer)"

    def end(self, timeout_s: float) -> None:
        if not self.fork.wait(timeout_s):
            self.fork.signal(signal.SIGKILL)
            self.fork.wait(KILL_TIMEOUT_S)
        self.line.close()


class LocalHost:
    """A `ProcessHost` on this machine, for processes that share nothing.

    `live` is their main function (`module:function`, see `fork_server.Live`). Their output goes to `log`. The fork server
    starts with the first process and stays until `end`.
    """

    def __init__(self, live: str, log: Path, *, early: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self._live, self._log, self._early, self._env = live, log, early, env
        self._held: list[int] = []
        self._fork_server: ForkServer | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="runnel-")

    def open(self, names: Collection[str]) -> None:
        """No-op: the processes share nothing."""

    def start(self, name: str, order: Message) -> LocalProcess:
        ours, theirs = socket.socketpair()
        stack_file = Path(self._scratch.name) / f"{name}.stack"
        stack_file.write_text("")
        with theirs, self._log.open("ab") as log:
            fork = self._living().fork(theirs.fileno(), log.fileno())
        line = MessageSocket(ours)
        line.send({**order, "name": name, "stack_file": str(stack_file)})
        return LocalProcess(fork, line, stack_file)

    def _living(self) -> ForkServer:
        """The fork server; a new one if the last is gone."""
        if self._fork_server is not None and self._fork_server.gone():
            if not self._fork_server.forked:
                raise WorkerFailure("fork server", f"does not start; see {self._log}")
            self._fork_server.close()
            self._fork_server = None
        if self._fork_server is None:
            self._fork_server = ForkServer(self._live, self._log, early=self._early, env=self._env)
            self._fork_server.hold(self._held)
        return self._fork_server

    def _share(self, fds: list[int]) -> None:
        """Give later processes these descriptors, and no others."""
        self._held = fds
        if self._fork_server is not None:
            self._fork_server.drop()
            self._fork_server.hold(fds)

    def wait(self, handles: Collection[ProcessHandle], timeout_s: float) -> None:
        told: list[MessageSocket | ForkServer] = [h.line for h in handles if isinstance(h, LocalProcess) and not h.line.closed]
        if self._fork_server is not None and not self._fork_server.closed:
            told.append(self._fork_server)  # it reports how a process has ended; a closed line does not
        select.select(told, [], [], timeout_s)

    def lost(self) -> str:
        return ""

    def output(self) -> str:
        with self._log.open("rb") as log:
            return last_text(log)

    def close(self) -> None:
        """No-op: the processes share nothing."""

    def end(self) -> None:
        """End the fork server. Processes that are left go on."""
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None
        self._scratch.cleanup()


class LocalGroups(LocalHost):
    """The `ProcessHost` of a run: its groups share memory that this process makes."""

    def __init__(self, session: Session) -> None:
        early = EARLY + (EARLY_FOR_TEXT if session.experiment.leader.token_streams else ())
        super().__init__("runnel.run.launchers.child:live", session.folder.log, early=early)
        self._session = session
        self._fds: dict[str, int] = {}
        self._pipes: dict[str, tuple[int, int]] = {}

    def open(self, names: Collection[str]) -> None:
        self._fds = Edges(self._session.experiment, self._session.groups).allocate()
        self._pipes = Doorbells.make(list(self._session.groups))
        self._share([*self._fds.values(), *(fd for pair in self._pipes.values() for fd in pair)])

    def start(self, name: str, order: Message) -> LocalProcess:
        run = str(self._session.folder.path.resolve())
        return super().start(name, {**order, "run": run, "memory": list(self._fds), "groups": list(self._pipes)})

    def close(self) -> None:
        """Close the groups' shared memory; the fork server stays for the next start."""
        held = self._held
        self._share([])
        for fd in held:
            os.close(fd)
        self._fds, self._pipes = {}, {}
