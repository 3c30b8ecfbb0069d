"""The processes of one vector: starts them, gives orders, waits for their answers, replaces those that are lost."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise

from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Plain, State
from runnel.envs.vector.shared import read_message, send_message
from runnel.envs.vector.worker import ERROR, STEP, TELL, TOLD, EnvWorker, Job

SPIN_S = 50e-6
"""A process looks for its byte this long before it sleeps: waking up takes as long."""
CLOSE_S = 5.0
"""Time that a worker has to close its environments before it is killed."""
LOOKS = 8
"""How many times within `step_timeout_s` the parent looks which environment a worker is stepping."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parts_of(num_envs: int, num_workers: int) -> list[slice]:
    """The consecutive environments of each worker; 0 workers: one a core."""
    if not hasattr(os, "fork"):
        raise ConfigError("vector.backend", "processes", "this system cannot fork processes; use serial")
    num_workers = min(num_workers or num_cores(), num_envs)
    edges = [num_envs * worker // num_workers for worker in range(num_workers + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]


class EnvHost:
    """A worker for each of `jobs`. A step that takes longer than `timeout_s` in one environment (None: any time) loses its
    worker. `name` and `index0` are of the vector, for messages."""

    def __init__(self, jobs: Sequence[Job], *, timeout_s: float | None, name: str, index0: int) -> None:
        self._jobs, self._timeout_s, self._name, self._index0 = jobs, timeout_s, name, index0
        self._workers: list[EnvWorker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers, os.getpid())
        for number in range(len(jobs)):
            self._workers.append(self._start(number))
        self._waiting: list[EnvWorker] = []
        self._deadline: float | None = None

    def _start(self, number: int) -> EnvWorker:
        job = self._jobs[number]
        job.at_env[number] = -1
        return EnvWorker(job)

    def step(self) -> None:
        """Start a step of all workers."""
        self._waiting = list(self._workers)
        self._deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        for worker in self._workers:
            with suppress(BrokenPipeError):  # the worker is dead; `_finish` will report it
                os.write(worker.orders, STEP)

    def ready(self) -> bool:
        """Whether `finish` would return without waiting."""
        late = self._deadline is not None and time.monotonic() > self._deadline
        return late or all(worker.poll.poll(0) for worker in self._waiting)

    def finish(self) -> tuple[dict[int, Plain], dict[int, str]]:
        """Wait for the step. By number: what workers had to tell, and what went wrong with those that are lost."""
        waiting, self._waiting = self._waiting, []
        told: dict[int, Plain] = {}
        problems = {worker.job.number: self._finish(worker, told) for worker in waiting}
        return told, {number: problem for number, problem in problems.items() if problem}

    def _finish(self, worker: EnvWorker, told: dict[int, Plain]) -> str:
        """Wait for a worker's step. Returns what went wrong with its process; empty if nothing did."""
        if not self._await(worker):
            worker.end()
            return f"hung: a step took more than {self._timeout_s:g} s (vector.step_timeout_s)"
        try:
            token = os.read(worker.answers, 1)
            if token == TOLD:
                told[worker.job.number] = read_message(worker.answers)
            elif token == ERROR:
                raise _as_error(read_message(worker.answers))
            if token:
                return ""
        except EOFError:
            pass
        return f"died: its process {worker.end(patience_s=1.0)}"

    def _await(self, worker: EnvWorker) -> bool:
        """Wait for a worker's byte; False on a timeout. Each of its environments in turn may take `step_timeout_s`."""
        if self._timeout_s is None or self._deadline is None:
            return worker.wait(None)
        env, deadline = worker.job.envs.start, self._deadline
        while not worker.wait(min(deadline - time.monotonic(), self._timeout_s / LOOKS)):
            # the worker went on to another environment: that one has the whole time again
            if (now := int(worker.job.at_env[worker.job.number])) != env:
                env, deadline = now, time.monotonic() + self._timeout_s
            elif time.monotonic() >= deadline:
                return False
        return True

    def ask_all(self, orders: Sequence[State]) -> list[Plain]:
        """The answers of all workers to an order for each."""
        for worker, order in zip(self._workers, orders, strict=True):
            self._tell(worker, order)
        return [self._hear(worker) for worker in self._workers]

    def replace(self, number: int, order: State) -> None:
        """Start a new worker in place of a lost one, and give it its first order."""
        self._workers[number] = fresh = self._start(number)
        self._tell(fresh, order)
        self._hear(fresh)

    def _tell(self, worker: EnvWorker, order: State) -> None:
        with suppress(BrokenPipeError):  # `_hear` will report it
            os.write(worker.orders, TELL)
            send_message(worker.orders, order)

    def _hear(self, worker: EnvWorker) -> Plain:
        try:
            token = os.read(worker.answers, 1)
            answer = read_message(worker.answers)
        except EOFError:
            first, last = self._index0 + worker.job.envs.start, self._index0 + worker.job.envs.stop - 1
            how = worker.end(patience_s=1.0)
            raise DataError(f"the process of environments {self._name!r} (index {first} to {last}) {how}") from None
        if token == ERROR:
            raise _as_error(answer)
        return answer

    def close(self) -> None:
        """End all workers."""
        self._finalizer()


def _as_error(answer: dict[str, str]) -> DataError:
    error = DataError(answer["text"])
    if answer["trace"]:
        error.add_note(answer["trace"])
    return error


def _end_all(workers: list[EnvWorker], owner: int) -> None:
    if os.getpid() != owner:
        return
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.end(patience_s=CLOSE_S)
