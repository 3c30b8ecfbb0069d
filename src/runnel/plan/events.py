"""The basic parts of a discrete-event simulation: an agenda with its own clock, links, devices."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

P = ParamSpec("P")


class Agenda:
    """Calls scheduled for a time, in order of time and then of entry. It is also the simulation's `core.clock.Clock`.

    >>> agenda, seen = Agenda(), []
    >>> agenda.at(2.0, lambda: seen.append(agenda.now()))
    >>> agenda.at(1.0, lambda: seen.append(agenda.now()))
    >>> while agenda.step(): pass
    >>> seen, agenda.num_events
    ([1.0, 2.0], 2)
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.num_events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._entries = 0

    def now(self) -> float:
        """Simulated seconds since the start."""
        return self.time

    def at(self, time: float, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Schedule `call(*args)` for `time`, which must not be in the past."""
        self._entries += 1  # of two calls at one time the earlier entry comes first, so a simulation is repeatable
        ready: Callable[[], None] = partial(call, *args, **kwargs)
        heapq.heappush(self._heap, (time, self._entries, ready))

    def step(self) -> bool:
        """Make the next call. Returns False if there is none."""
        if not self._heap:
            return False
        self.time, _, call = heapq.heappop(self._heap)
        self.num_events += 1
        call()
        return True


class SimulatedLink:
    """A link with a bandwidth and a latency. Messages are sent one after another.

    >>> link = SimulatedLink(Agenda(), bytes_per_s=100.0, latency_s=0.5)
    >>> link.send(100), link.send(100)
    (1.5, 2.5)
    """

    def __init__(self, agenda: Agenda, *, bytes_per_s: float, latency_s: float) -> None:
        self._agenda, self._bytes_per_s, self._latency_s = agenda, bytes_per_s, latency_s
        self.free_at = 0.0
        self.busy_s = 0.0

    def send(self, size: float) -> float:
        """Send a message of `size` bytes now. Returns the time at which it arrives."""
        seconds = size / self._bytes_per_s
        self.free_at = max(self.free_at, self._agenda.time) + seconds
        self.busy_s += seconds
        return self.free_at + self._latency_s


class Device:
    """A device that does one piece of work at a time, in order of request. Long work is cut into slices, so that short work of
    another process can run between them, as on a shared accelerator."""

    def __init__(self, agenda: Agenda, *, slice_s: float = 5e-3) -> None:
        self._agenda, self._slice_s = agenda, slice_s
        self.free_at = 0.0
        self.busy_s: dict[str, float] = {}

    def use(self, kind: str, seconds: float, call: Callable[[], None]) -> None:
        """Work for `seconds`, then call `call()`."""
        now = min(seconds, self._slice_s)
        self.free_at = max(self.free_at, self._agenda.time) + now
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + now
        if seconds - now > 1e-12:  # rounding may leave a rest that is no work
            self._agenda.at(self.free_at, self.use, kind, seconds - now, call)
        else:
            self._agenda.at(self.free_at, call)
