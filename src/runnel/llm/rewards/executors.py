"""Where a reward function runs: inside the call, or in threads. Worker processes are in `processes.py`.

An executor runs the jobs of one component and returns outcomes by ticket, in any order. It never waits longer than asked.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol

from runnel.core.clock import Clock
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.judging import RewardJob, RewardOutcome, judge


class RewardExecutor(Protocol):
    """Runs one component's jobs."""

    def start(self) -> None:
        """Get ready before the first job comes, if that takes time."""
        ...

    def submit(self, ticket: int, job: RewardJob) -> None: ...

    def poll(self, wait_s: float = 0.0) -> dict[int, RewardOutcome]:
        """Outcomes since the last call, timeouts included. It waits up to `wait_s` for the first one."""
        ...

    def close(self) -> None: ...


def timed_out(component: RewardComponent, seconds: float) -> RewardOutcome:
    """The outcome of a job that took too long, with the setting that gives it more time."""
    field = f"timeout_s of reward {component.name!r}" if component.timeout_s else "data.reward_timeout_s"
    return RewardOutcome(None, f"timeout after {seconds:g} s ({field})")


class InlineExecutor:
    """Runs a job inside `submit`: the cheapest way for a function that is fast and cannot hang."""

    def __init__(self, component: RewardComponent) -> None:
        self._component, self._fn = component, component.function()
        self._found: dict[int, RewardOutcome] = {}

    def start(self) -> None:
        """Does nothing: it is ready."""

    def submit(self, ticket: int, job: RewardJob) -> None:
        self._found[ticket] = judge(self._fn, self._component, job)

    def poll(self, wait_s: float = 0.0) -> dict[int, RewardOutcome]:
        found, self._found = self._found, {}
        return found

    def close(self) -> None:
        """Does nothing: it holds no resources."""


class ThreadExecutor:
    """Runs jobs in `component.workers` threads. A job that exceeds its time is abandoned: its thread cannot be stopped, so a
    new thread replaces it, and the old one ends at the latest with the process."""

    def __init__(self, component: RewardComponent, *, timeout_s: float, clock: Clock) -> None:
        self._component, self._timeout_s, self._clock = component, timeout_s, clock
        self._fn = component.function()
        self._queue: deque[tuple[int, RewardJob]] = deque()
        self._began: dict[int, float] = {}
        self._found: dict[int, RewardOutcome] = {}
        self._changed = threading.Condition()
        self._threads = 0
        self._closed = False

    def start(self) -> None:
        """Does nothing: threads start when jobs come."""

    def submit(self, ticket: int, job: RewardJob) -> None:
        with self._changed:
            self._queue.append((ticket, job))
            if self._threads < self._component.workers:
                self._start()
            self._changed.notify_all()

    def poll(self, wait_s: float = 0.0) -> dict[int, RewardOutcome]:
        with self._changed:
            self._give_up()
            if not self._found and wait_s > 0:
                self._changed.wait(wait_s)
                self._give_up()
            found, self._found = self._found, {}
            return found

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    def _give_up(self) -> None:
        now = self._clock.now()
        for ticket in [t for t, began in self._began.items() if now - began >= self._timeout_s]:
            del self._began[ticket]
            self._found[ticket] = timed_out(self._component, self._timeout_s)
            self._threads -= 1
            if self._queue:
                self._start()

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"reward-{self._component.name}", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                ticket, job = self._queue.popleft()
                self._began[ticket] = self._clock.now()
            outcome = judge(self._fn, self._component, job)
            with self._changed:
                if self._began.pop(ticket, None) is None:
                    return  # abandoned: another thread has replaced this one
                self._found[ticket] = outcome
                self._changed.notify_all()
