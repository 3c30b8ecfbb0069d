"""Where time goes: a stage timer that costs two clock reads a stage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from runnel.core.clock import Clock
from runnel.core.trace import TraceTrack


class StageTimer:
    """Seconds spent by stage, and the stage that is running now (the heartbeat reports it).

    >>> from runnel.core.clock import ManualClock
    >>> clock = ManualClock(); timer = StageTimer(clock)
    >>> with timer.stage("update"):
    ...     clock.advance(2.0)
    >>> timer.drain()
    {'update': 2.0}
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._waited = 0.0
        self._done: set[str] = set()
        self.current: tuple[str, float] = ("idle", clock.now())
        self.held: float | None = None
        """Since when it waits for others inside a stage, if it does."""
        self.track: TraceTrack | None = None
        """Where stages are recorded one by one, in a run that is traced."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        outer, start, waited = self.current, self._clock.now(), self._waited
        self.current = (name, start)
        try:
            yield
        finally:
            end = self._clock.now()
            busy = end - start - (self._waited - waited)
            self._seconds[name] = self._seconds.get(name, 0.0) + busy
            self._done.add(name)
            if self.track is not None:
                self.track.span(name, start, end, busy)
            self.current = (outer[0], end)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Inside a stage: time that goes by for others, which is none of the stage's; nobody who waits here hangs."""
        outer, start = self.current, self._clock.now()
        self.current, self.held = ("idle", start), start
        try:
            yield
        finally:
            end, self.held = self._clock.now(), None
            self._waited += end - start
            if self.track is not None:
                self.track.wait(start, end)
            self.current = (outer[0], end)

    def spent(self, name: str) -> float:
        """Seconds in a stage since the last `drain`."""
        return self._seconds.get(name, 0.0)

    @property
    def waited_s(self) -> float:
        """Seconds in `wait` since the start."""
        return self._waited

    def knows(self, name: str) -> bool:
        """Whether that stage has ended before; the first time may compile kernels, or start an engine."""
        return name in self._done

    def drain(self) -> dict[str, float]:
        """Seconds by stage since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds
