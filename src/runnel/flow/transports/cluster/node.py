"""The shared memory of one node of a cluster, for processes without a common parent.

One process of the node (its agent) makes anonymous memory and pipes. The others open them through the agent's descriptors under
/proc. So the memory still has no name, and the kernel frees it when the last process that uses it ends.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.records import StreamSpec
from runnel.flow.inference.mailboxes import InferenceSpec
from runnel.flow.transports.shm import ShmTransport, anonymous_file, hear, make_bell, press

MAX_PROCESSES = 256
"""Maximum number of processes of one run on one node."""
AGENT_PLACE = 0


@dataclass(frozen=True)
class NodeMemory:
    """How a process finds the memory of its node, as plain data."""

    pid: int
    fds: dict[str, int]
    pipes: list[tuple[int, int]]
    marks: int

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> NodeMemory:
        return NodeMemory(data["pid"], dict(data["fds"]), [(r, w) for r, w in data["pipes"]], data["marks"])

    def transport(self, bells: NodeBells) -> ShmTransport:
        """Open the streams of this node."""
        mine = self.pid == os.getpid()
        fds = self.fds if mine else {name: _open(self.pid, fd, os.O_RDWR) for name, fd in self.fds.items()}
        return ShmTransport(fds, bells)


def make_memory(
    streams: Mapping[str, StreamSpec],
    channels: list[str],
    mailbox_tables: Mapping[str, InferenceSpec],
    *,
    places: int = MAX_PROCESSES,
) -> NodeMemory:
    """Make the memory of this node. This process must live as long as other processes may open the memory."""
    pipes = [make_bell() for _ in range(places)]
    fds = ShmTransport.allocate(streams, channels, mailbox_tables)
    return NodeMemory(os.getpid(), fds, pipes, anonymous_file("bells", places))


class NodeBells:
    """Doorbells of a node: one pipe for each place. A process marks its place; only marked places are rung."""

    def __init__(self, memory: NodeMemory, place: int) -> None:
        self._memory, self._place = memory, place
        self._mine = memory.pid == os.getpid()
        read = memory.pipes[place][0]
        self._own = read if self._mine else _open(memory.pid, read, os.O_RDONLY | os.O_NONBLOCK)
        marks = memory.marks if self._mine else _open(memory.pid, memory.marks, os.O_RDWR)
        self._marks = np.memmap(os.fdopen(os.dup(marks), "r+b"), np.uint8, "r+", shape=(len(memory.pipes),))
        self._marks[place] = 1
        self._writers: dict[int, int] = {}

    def ring(self) -> None:
        for place in np.flatnonzero(self._marks).tolist():
            if place != self._place and not self._lost(place):
                press(self._writer(place))

    def _lost(self, place: int) -> bool:
        """Whether a bell that was never opened here has vanished, because the agent that made it has died.

        That is no error here: the supervisor notices the loss and restarts the node's processes.
        """
        if place in self._writers or self._mine:
            return False
        return not os.path.lexists(f"/proc/{self._memory.pid}/fd/{self._memory.pipes[place][1]}")

    def wait(self, timeout_s: float, *also: int) -> bool:
        """Wait for a ring, for a readable descriptor in `also`, or for `timeout_s`; returns whether anything came."""
        return hear(self._own, timeout_s, *also)

    def wake(self) -> None:
        """Ring this process's own bell, from another thread."""
        press(self._writer(self._place))

    def _writer(self, place: int) -> int:
        """The writing end of the bell at `place`, opened at its first ring."""
        if place not in self._writers:
            write = self._memory.pipes[place][1]
            self._writers[place] = write if self._mine else _open(self._memory.pid, write, os.O_WRONLY | os.O_NONBLOCK)
        return self._writers[place]


def _open(pid: int, fd: int, flags: int) -> int:
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", flags)
    except OSError as error:
        fix = "processes of one node must see each other under /proc: same user, same container"
        raise ConfigError("cluster", f"process {pid}", f"its shared memory cannot be opened ({error}); {fix}") from error
