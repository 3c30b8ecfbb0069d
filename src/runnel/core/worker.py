"""Base class of workers: a name, a bounded `poll`, a state that can be saved, and signs of life for a watcher.

A watcher sees the stage that a worker is in (`StageTimer`) and a count of finished pieces of work (`progressed`). Deadlines
follow progress: a stage that takes long is not hung while pieces of it come back (the step of one environment, a micro-batch, a
reward). Code that finishes such a piece calls `progressed`, which adds one to the count. The heartbeat of the process looks
whether the count has changed. The count lies in memory that forks share, so a step that an environment takes in a child process
counts for the process that waits for it. Call `progressed` from the thread that does the work: a call from another thread would
hide that this one hangs.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from runnel.core.clock import Clock
from runnel.core.state import State, WorkerEvent
from runnel.core.trace import TraceTrack


class Worker:
    """One poll is one bounded piece of work and never waits for another worker.

    A worker knows streams, and what it runs (a sampler, an inferencer, a learner); never where the others are.
    """

    kind = "worker"

    def __init__(self, name: str, clock: Clock) -> None:
        self.name, self.clock = name, clock
        self.timer = StageTimer(clock)
        self._events: list[WorkerEvent] = []

    def setup(self) -> None:
        """Called once, before the first poll and after a restore."""

    def poll(self) -> int:
        """Do one bounded piece of work; returns how much (0: waiting)."""
        raise NotImplementedError

    def waits_for(self) -> str:
        """In words, what the last poll that did nothing waited for."""
        return "nothing"

    def emit(self, event: WorkerEvent) -> None:
        """Tell the run something: an update, an evaluation, an episode, a warning."""
        self._events.append(event)

    def drain(self) -> list[WorkerEvent]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Undo `snapshot`."""

    def close(self) -> None:
        """Release the resources that the worker holds."""


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
        """When it began to wait for others inside a stage; None while it does not wait."""
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
        """Time inside a stage in which the worker waits for others. It is not the stage's own, and no deadline counts it."""
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


# ------------------------------------------------------------------------------------------------- pieces of work
def _fresh() -> memoryview:
    return memoryview(mmap.mmap(-1, 8)).cast("Q")


_count = _fresh()


def progressed() -> None:
    """Count a finished piece of work. Two pieces that finish at the same moment may count as one."""
    _count[0] += 1


def num_progressed() -> int:
    """Finished pieces so far. Only a change of this number means something."""
    return _count[0]


def count_alone() -> None:
    """Start a new count, shared only with processes that this one forks. For a process that was forked to do its own work."""
    global _count
    _count = _fresh()
