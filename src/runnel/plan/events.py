"""The parts that every discrete-event simulation has: an agenda with its own clock, links, devices."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Agenda:
    """Calls to be made at set times, in the order of time (then of entry). It is the simulation's `core.clock.Clock`.

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
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._entries = 0

    def now(self) -> float:
        """Simulated seconds since the start."""
        return self.time

    def at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Make `call(*args)` at `time`, which is not in the past."""
        self._entries += 1
        heapq.heappush(self._heap, (time, self._entries, call, args))

    def step(self) -> bool:
        """Make the next call; False when there is none."""
        if not self._heap:
            return False
        self.time, _, call, args = heapq.heappop(self._heap)
        self.num_events += 1
        call(*args)
        return True


class SimulatedLink:
    """A way of so many bytes a second on which messages go one after another, each with a delay of its own.

    >>> link = SimulatedLink(Agenda(), bytes_per_s=100.0, latency_s=0.5)
    >>> link.send(100), link.send(100)
    (1.5, 2.5)
    """

    def __init__(self, agenda: Agenda, *, bytes_per_s: float, latency_s: float) -> None:
        self._agenda, self._bytes_per_s, self._latency_s = agenda, bytes_per_s, latency_s
        self.free_at = 0.0
        self.busy_s = 0.0

    def send(self, size: float) -> float:
        """When a message of `size` bytes that is sent now arrives."""
        seconds = size / self._bytes_per_s
        self.free_at = max(self.free_at, self._agenda.time) + seconds
        self.busy_s += seconds
        return self.free_at + self._latency_s


class Device:
    """Something that works on one thing at a time, in order of asking. Long work is cut into slices, so that short work of
    another process gets its turn between them, as on a shared accelerator."""

    def __init__(self, agenda: Agenda, *, slice_s: float = 5e-3) -> None:
        self._agenda, self._slice_s = agenda, slice_s
        self.free_at = 0.0
        self.busy_s: dict[str, float] = {}

    def use(self, kind: str, seconds: float, call: Callable[..., None], *args: Any) -> None:
        """Work for `seconds`, then make `call(*args)`."""
        piece = min(seconds, self._slice_s)
        self.free_at = max(self.free_at, self._agenda.time) + piece
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + piece
        if seconds - piece > 1e-12:
            self._agenda.at(self.free_at, self.use, kind, seconds - piece, call, *args)
        else:
            self._agenda.at(self.free_at, call, *args)
