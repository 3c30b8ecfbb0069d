"""The clock of flow code. A test can stop it, and a simulation can set it forward."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time to flow code."""

    def now(self) -> float:
        """Seconds from an arbitrary, monotonic start."""
        ...


class WallClock:
    """The real time."""

    now = staticmethod(time.perf_counter)


class ManualClock:
    """A clock that moves only when told.

    >>> c = ManualClock(); c.advance(2.5); c.now()
    2.5
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
