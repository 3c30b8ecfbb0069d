"""Ends what a process has started, and what that has started, when the process itself cannot: it was killed.

Ray's own helpers outlive a killed Ray by a minute, because they first want to tell its head about it. A guard is a small
process that looks who descends from what was started under it, waits for the end of whoever started that, and kills who is
left. This file is run by path, so it imports nothing of ours.
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
"""A guard tries for so long to see all of them gone."""
START_TIME = 19
"""Which word behind its name in /proc/PID/stat is the time of a process's start: that makes a process out of a number."""


class ClusterGuard:
    """Watches over the processes that this one starts inside the block; outside of it, other things may be started.

    They are killed when this process is gone, or at `close`.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is not for it
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        self._process.stdout.read(1)  # it knows who was there before
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"!")
            self._process.stdin.flush()
            self._process.stdout.read(1)  # it knows who was started: whoever is killed from now on is looked after

    def close(self) -> None:
        """Have it end who is left, and itself."""
        with suppress(BrokenPipeError):
            self._process.communicate()


def children(pid: int) -> set[int]:
    """Who was started by `pid`. Nobody, where the kernel does not tell."""
    found = set[int]()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # a thread that has just ended
            found |= {int(word) for word in file.read_text().split()}
    return found - {os.getpid()}


def descendants(roots: Collection[int]) -> dict[int, str]:
    """`roots` and whom they have started, with the time of their start."""
    found: dict[int, str] = {}
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found and (began := _started(pid)):
            found[pid] = began
            left += children(pid)
    return found


def _started(pid: int) -> str:
    """When a process was started; empty if it has ended, also if nobody has asked for its exit code yet."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZX" else words[START_TIME]


def sweep(known: dict[int, str]) -> None:
    """Kill those of `known` that are left."""
    deadline = time.monotonic() + SWEEP_S
    while (left := [pid for pid, began in known.items() if _started(pid) == began]) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main() -> int:
    """All of a guard's life: whoever holds the other end of our input is watched until that closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # these are for those that it watches over
    watched = os.getppid()
    before, roots, known, said = children(watched), set[int](), dict[int, str](), b""
    os.write(1, b"!")
    while True:
        heard = select.select([0], [], [], LOOK_S if said else LOOK_S / 10)[0]
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
