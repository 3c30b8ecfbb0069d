"""Reward functions in worker processes: the only place where user code can be stopped for certain.

Workers are started once and reused. When a job takes too long, its worker is killed, with all processes that it started, and
replaced. A function is sent by its name and a job as JSON: nothing is pickled. A worker ends when its parent ends, for whatever
reason.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

from runnel.core.clock import Clock
from runnel.core.framing import Message, MessageSocket
from runnel.core.process import ChildProgram
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.judging import RewardExecutor, RewardJob, RewardOutcome, checked, timed_out

SCRIPT = Path(__file__).with_name("worker.py")
START_S = 120.0
"""Longest start of a worker: its imports."""
STEP_S = 0.05
"""Longest wait between two looks at the clock."""


class WorkerProcess:
    """One worker: a process in its own session, and a socket to it."""

    def __init__(self, component: RewardComponent, began: float) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.child = ChildProgram(
                [sys.executable, str(SCRIPT), str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
                new_session=True,
            )
        self.line = MessageSocket(ours)
        self.ready, self.began = False, began
        self.ticket: int | None = None
        self.job: RewardJob | None = None
        self.line.send({"fn": component.target, "options": dict(component.options), "path": sys.path})

    def kill(self) -> None:
        """Kill the process and all that it started."""
        self.child.end()
        self.line.close()


class ProcessExecutor(RewardExecutor):
    """Runs one component's jobs in up to `component.workers` worker processes."""

    def __init__(self, component: RewardComponent, *, timeout_s: float, clock: Clock) -> None:
        self._component, self._timeout_s, self._clock = component, timeout_s, clock
        self._queue: deque[tuple[int, RewardJob]] = deque()
        self._workers: list[WorkerProcess] = []
        self._found: dict[int, RewardOutcome] = {}

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [w.child.pid for w in self._workers]

    def start(self) -> None:
        """Start one worker, so that its imports are done when the first job comes."""
        if not self._workers:
            self._workers.append(WorkerProcess(self._component, self._clock.now()))

    def submit(self, ticket: int, job: RewardJob) -> None:
        self._queue.append((ticket, job))
        self._hand_out()

    def poll(self, wait_s: float = 0.0) -> dict[int, RewardOutcome]:
        self._read()
        if not self._found and wait_s > 0 and self._workers:
            select.select([w.line for w in self._workers], [], [], min(wait_s, STEP_S))
            self._read()
        found, self._found = self._found, {}
        return found

    def close(self) -> None:
        self._queue.clear()
        for worker in self._workers:
            worker.kill()
        self._workers = []

    def _read(self) -> None:
        for worker in list(self._workers):
            for message in worker.line.receive():
                self._receive(worker, message)
            if worker.line.closed and worker in self._workers:
                worker.kill()
                self._lose(worker, RewardOutcome(None, f"its worker process {worker.child.how()}"))
            elif worker in self._workers:
                self._check_time(worker)
        self._hand_out()

    def _receive(self, worker: WorkerProcess, message: Message) -> None:
        if "ready" in message:
            worker.ready = True
        elif worker.job is None or worker.ticket is None:
            self._lose(worker, _failure(message))  # it could not load the function
        else:
            failed, job = "failure" in message, worker.job
            self._found[worker.ticket] = _failure(message) if failed else checked(self._component, job, message["values"])
            worker.ticket = worker.job = None

    def _check_time(self, worker: WorkerProcess) -> None:
        age = self._clock.now() - worker.began
        if worker.ticket is not None and age >= self._timeout_s:
            self._lose(worker, timed_out(self._component, self._timeout_s))
        elif not worker.ready and age >= START_S:
            self._lose(worker, RewardOutcome(None, f"its worker process did not start within {START_S:g} s"))

    def _lose(self, worker: WorkerProcess, outcome: RewardOutcome) -> None:
        """Kill and remove a worker: `outcome` is that of its job. If it could not start, the next job fails with it, so that a
        function that cannot be loaded is not tried for ever."""
        worker.kill()
        self._workers.remove(worker)
        ticket = worker.ticket
        if ticket is None and not worker.ready and self._queue:
            ticket = self._queue.popleft()[0]
        if ticket is not None:
            self._found[ticket] = outcome

    def _hand_out(self) -> None:
        """Give waiting jobs to idle workers, and start workers while more jobs wait than workers are idle."""
        for worker in self._workers:
            if worker.ready and worker.ticket is None and self._queue:
                self._assign(worker, *self._queue.popleft())
        idle = sum(w.ticket is None for w in self._workers)
        while len(self._queue) > idle and len(self._workers) < self._component.workers:
            self._workers.append(WorkerProcess(self._component, self._clock.now()))
            idle += 1

    def _assign(self, worker: WorkerProcess, ticket: int, job: RewardJob) -> None:
        columns = job.columns_for(self._component)
        try:
            message = {"prompts": list(job.prompts), "completions": list(job.completions), "columns": columns}
            json.dumps(columns)
        except (TypeError, ValueError) as error:
            fix = "columns must be plain data (numbers, strings, lists, dicts) to reach a worker process; or use run='thread'"
            self._found[ticket] = RewardOutcome(None, f"{error}; {fix}")
            return
        worker.ticket, worker.job, worker.began = ticket, job, self._clock.now()
        worker.line.send(message)


def _failure(message: Message) -> RewardOutcome:
    return RewardOutcome(None, message["failure"], lines=message["lines"])
