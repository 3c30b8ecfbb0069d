"""Rewards from user code, sync or async, in a pool: what fails, hangs or answers nonsense is counted, never a reward of 0.

Consumes jobs (prompts, completions, columns), produces verdicts in the order of submission. It waits for user code, for at
most `timeout_s` a job.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

import numpy as np

from runnel.core.clock import Clock, WallClock
from runnel.llm.tasks import Reward, RewardFn


@dataclass(frozen=True)
class RewardJob:
    """The completions of one group. `key` comes back with the verdict."""

    key: int
    prompts: Sequence[str]
    completions: Sequence[str]
    columns: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Verdict:
    """Rewards by channel for every completion of job `key`, or the reason why there are none."""

    key: int
    rewards: dict[str, list[float]] | None
    failure: str = ""


class RewardPool:
    """Runs a reward function in threads. Verdicts come in submission order, so that a run is deterministic.

    A job that runs out of time is given up: its thread cannot be stopped, so a fresh one takes its place, and it ends with
    the process. With `num_threads = 0` jobs run inside `submit` (no time limit): the cheapest way for a fast function.
    """

    def __init__(
        self,
        fn: RewardFn,
        *,
        channels: Sequence[str] = ("reward",),
        timeout_s: float = 30.0,
        num_threads: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self._fn, self._channels, self._timeout_s = fn, tuple(channels), timeout_s
        self._num_threads = num_threads
        self._clock = clock or WallClock()
        self._jobs: deque[tuple[RewardJob, Future[Verdict]]] = deque()
        self._queue: deque[tuple[RewardJob, Future[Verdict]]] = deque()
        self._wake = threading.Condition()
        self._threads = 0
        self._started: dict[int, float] = {}
        self._closed = False

    def submit(self, job: RewardJob) -> int:
        """Hand a job over; returns its key, which its verdict carries."""
        future: Future[Verdict] = Future()
        self._jobs.append((job, future))
        if self._num_threads == 0:
            future.set_result(judge(self._fn, job, self._channels))
            return job.key
        with self._wake:
            self._queue.append((job, future))
            if self._threads < self._num_threads:
                self._start()
            self._wake.notify()
        return job.key

    def pending(self) -> int:
        """Jobs whose verdict was not collected yet."""
        return len(self._jobs)

    def collect(self, *, block: bool) -> list[Verdict]:
        """Verdicts that are ready, oldest job first, up to the first that is not; with `block`, those of all jobs."""
        out: list[Verdict] = []
        while self._jobs:
            job, future = self._jobs[0]
            verdict = self._wait(job, future) if block else self._peek(job, future)
            if verdict is None:
                break
            self._jobs.popleft()
            out.append(verdict)
        return out

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._queue.clear()
            self._wake.notify_all()

    def _peek(self, job: RewardJob, future: Future[Verdict]) -> Verdict | None:
        if future.done():
            return future.result()
        with self._wake:
            began = self._started.get(id(future))
        if began is None or self._clock.now() - began < self._timeout_s:
            return None
        return self._give_up(job, future)

    def _wait(self, job: RewardJob, future: Future[Verdict]) -> Verdict:
        while True:
            verdict = self._peek(job, future)
            if verdict is not None:
                return verdict
            wait([future], timeout=min(self._timeout_s, 1.0))

    def _give_up(self, job: RewardJob, future: Future[Verdict]) -> Verdict:
        with self._wake:
            self._started.pop(id(future), None)
            self._threads -= 1
            if self._queue:
                self._start()
        return Verdict(job.key, None, f"timeout after {self._timeout_s:g} s")

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name="reward", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closed:
                    self._wake.wait()
                if self._closed:
                    return
                job, future = self._queue.popleft()
                self._started[id(future)] = self._clock.now()
            verdict = judge(self._fn, job, self._channels)
            with self._wake:
                late = self._started.pop(id(future), None) is None
            if late:
                return
            future.set_result(verdict)


def judge(fn: RewardFn, job: RewardJob, channels: Sequence[str]) -> Verdict:
    """Call a reward function once and check what it says. Whatever user code raises is the verdict's failure."""
    try:
        answer = fn(list(job.prompts), list(job.completions), **job.columns)
        values = list(asyncio.run(_await(answer)) if inspect.isawaitable(answer) else answer)
    except (Exception, SystemExit) as error:  # user code, which may run a model's code: counted, and the run goes on
        return Verdict(job.key, None, f"{type(error).__name__}: {error}")
    return _checked(job, values, channels)


async def _await(answer: Any) -> Any:
    return await answer


def _checked(job: RewardJob, values: Sequence[Reward], channels: Sequence[str]) -> Verdict:
    if len(values) != len(job.completions):
        return Verdict(job.key, None, f"{len(values)} rewards for {len(job.completions)} completions")
    out: dict[str, list[float]] = {c: [] for c in channels}
    for value in values:
        if value is None:
            return Verdict(job.key, None, "no verdict (None)")
        named = value if isinstance(value, Mapping) else {channels[0]: value}
        if set(named) != set(channels):
            return Verdict(job.key, None, f"channels {sorted(named)} instead of {sorted(channels)}")
        for channel, number in named.items():
            if not isinstance(number, int | float | np.number) or not math.isfinite(number):
                return Verdict(job.key, None, f"{channel} is {number!r}")
            out[channel].append(float(number))
    return Verdict(job.key, out)
