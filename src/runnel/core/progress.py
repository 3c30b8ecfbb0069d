"""Signs of progress inside a long piece of work, for whoever watches it from outside.

Deadlines follow progress: a stage that takes long is not hung while pieces of it come back (the step of one environment, a
micro-batch, a reward). Who finishes such a piece calls `progressed`, which adds one to a number; the heartbeat of the process
looks whether that number has changed. It lies in memory that forks share, so a step that an environment takes in a child
process counts for the process that waits for it. Call it from the thread that does the work: progress elsewhere would hide
that this one hangs.
"""

from __future__ import annotations

import mmap


def _fresh() -> memoryview:
    return memoryview(mmap.mmap(-1, 8)).cast("Q")


_count = _fresh()


def progressed() -> None:
    """A piece of the work has come back. Two of them that come at the same moment may count as one."""
    _count[0] += 1


def num_progressed() -> int:
    """Pieces that have come back so far; only whether it has changed says something."""
    return _count[0]


def count_alone() -> None:
    """From here on, this process and those that it forks share the number with nobody else. For a process that was forked to do
    work of its own."""
    global _count
    _count = _fresh()
