"""What every worker is: a name, a bounded `poll`, a state that can be saved."""

from __future__ import annotations

from typing import Any

from runnel.core.clock import Clock
from runnel.core.metrics import StageTimer
from runnel.core.state import State


class Worker:
    """One poll is one bounded piece of work and never waits for another worker.

    A worker knows streams, and what it runs (a sampler, an inferencer, a learner); never where the others are.
    """

    kind = "worker"

    def __init__(self, name: str, clock: Clock) -> None:
        self.name, self.clock = name, clock
        self.timer = StageTimer(clock)
        self._events: list[dict[str, Any]] = []

    def setup(self) -> None:
        """Called once, before the first poll and after a restore."""

    def poll(self) -> int:
        """Do one bounded piece of work; returns how much (0: waiting)."""
        raise NotImplementedError

    def waits_for(self) -> str:
        """In words, what the last poll that did nothing waited for."""
        return "nothing"

    def emit(self, event: dict[str, Any]) -> None:
        """Tell the run something: an update, an evaluation, an episode, a warning."""
        self._events.append(event)

    def drain(self) -> list[dict[str, Any]]:
        events, self._events = self._events, []
        return events

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Undo `snapshot`."""

    def close(self) -> None:
        """Let go of what the worker holds."""
