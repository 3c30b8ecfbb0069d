"""A guard process: kills the children and grandchildren of a process that was killed and could not do it itself.

Ray's helper processes outlive a killed Ray by a minute, because they first try to reach its head. A guard is a small process
that records the descendants of the process that started it. When that process ends, the guard kills the descendants that are
left. This file is run by path, so it must not import other files of the package.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Self

LOOK_S = 1.0
SWEEP_S = 10.0
"""A guard tries for this time to kill all of them."""
START_TIME = 19
"""Index (after the name) of the start time in /proc/PID/stat. Ids are used again; id and start time name one process."""


class ClusterGuard:
    """Guards the processes that this one starts inside the block, and only those.

    The guard kills them when this process is gone, or at `close`.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in the terminal must not end it
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        self._process.stdout.read(1)  # wait until it has recorded the children that exist already
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"!")
            self._process.stdin.flush()
            self._process.stdout.read(1)  # wait until it has recorded the new children

    def close(self) -> None:
        """Have the guard kill the processes that are left, and end."""
        with suppress(BrokenPipeError):
            self._process.communicate()


def children(pid: int) -> set[int]:
    """Ids of the children of `pid`; empty where the kernel does not list them."""
    found = set[int]()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            found |= {int(word) for word in file.read_text().split()}
    return found - {os.getpid()}


def descendants(roots: Collection[int]) -> dict[int, str]:
    """Ids of `roots` and of all their descendants, each with its start time."""
    found: dict[int, str] = {}
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found and (began := _started(pid)):
            found[pid] = began
            left += children(pid)
    return found


def _started(pid: int) -> str:
    """Start time of a process; empty if it has ended (a zombie has ended too)."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[START_TIME]


def sweep(known: dict[int, str]) -> None:
    """Kill the processes of `known` that still run. A process with the same id but another start time is left alone."""
    deadline = time.monotonic() + SWEEP_S
    while (left := [pid for pid, began in known.items() if _started(pid) == began]) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main() -> int:
    """Run the guard: record the descendants of the parent until the input closes, then kill those that are left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the guarded processes
    watched = os.getppid()
    before, roots, known, said = children(watched), set[int](), dict[int, str](), b""
    os.write(1, b"!")
    while True:
        heard = select.select([0], [], [], LOOK_S if said else LOOK_S / 10)[0]
        # Looked at often while the block lasts: a child that ends early would leave grandchildren that nothing links to us.
        roots |= set() if said else children(watched) - before
        known |= descendants(roots)
        if not heard:
            continue
        said = os.read(0, 1)
        if not said:
            sweep(known)
            return 0
        os.write(1, said)


if __name__ == "__main__":
    sys.exit(main())
