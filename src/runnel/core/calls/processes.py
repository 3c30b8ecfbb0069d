"""Calls in worker processes: the only place where user code can be stopped for certain.

Workers are started once and reused. When a call takes too long, its worker is killed, with all processes that it started, and
replaced. A function is sent by its name and arguments as JSON: nothing is pickled. A worker ends when its parent ends, for
whatever reason.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from runnel.core.calls.pool import Args, CallOutcome, CallSpec, Executor
from runnel.core.clock import Clock
from runnel.core.framing import Message, MessageSocket
from runnel.core.process import ChildProgram
from runnel.core.readable import Readable

SCRIPT = Path(__file__).with_name("worker.py")
START_S = 120.0
"""Longest start of a worker: its imports."""


class WorkerProcess:
    """One worker: a process in its own session, and a socket to it."""

    def __init__(self, spec: CallSpec, began: float) -> None:
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
        self.task: tuple[int, Args] | None = None
        """The try that it has. It is sent when the worker is ready: until then nobody reads the socket."""
        self.line.send({"name": spec.name, "fn": spec.target, "options": dict(spec.options), "path": sys.path})

    def kill(self) -> None:
        """Kill the process and all that it started."""
        self.child.end()
        self.line.close()


class ProcessExecutor(Executor):
    """Runs calls in up to `workers` worker processes. The time of a call begins when its worker is ready."""

    def __init__(self, spec: CallSpec, clock: Clock) -> None:
        super().__init__(spec, clock)
        self._workers: list[WorkerProcess] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [w.child.pid for w in self._workers]

    def start(self) -> None:
        """Start one worker, so that its imports are done when the first call comes."""
        self.room(1)

    def room(self, waiting: int) -> int:
        """The number of workers without a call. Workers are started while more calls wait than that."""
        idle = sum(w.task is None for w in self._workers)
        while idle < waiting and len(self._workers) < self.spec.workers:
            self._workers.append(WorkerProcess(self.spec, self._clock.now()))
            idle += 1
        return idle

    def begin(self, number: int, args: Args) -> None:
        worker = min((w for w in self._workers if w.task is None), key=lambda w: not w.ready)
        worker.task = number, args
        if worker.ready:
            self._send(worker, number, args)

    def poll(self) -> dict[int, CallOutcome]:
        for worker in list(self._workers):
            for message in worker.line.receive():
                self._receive(worker, message)
            if worker.line.closed and worker in self._workers:
                worker.kill()
                self._lose(worker, CallOutcome(reason=f"its worker process {worker.child.how()}", transient=True))
            elif not worker.ready and worker in self._workers and self._clock.now() - worker.began >= START_S:
                self._lose(worker, CallOutcome(reason=f"its worker process did not start within {START_S:g} s"))
        return super().poll()

    def wakes(self) -> Sequence[Readable]:
        return [w.line for w in self._workers]

    def close(self) -> None:
        super().close()
        for worker in self._workers:
            worker.kill()
        self._workers = []

    def _send(self, worker: WorkerProcess, number: int, args: Args) -> None:
        try:
            worker.line.send({"args": args[0], "named": args[1]})
            self._begin(number)
        except (TypeError, ValueError) as error:
            fix = "arguments must be plain data (numbers, strings, lists, dicts) to reach a worker process; or use run='thread'"
            worker.task, self._found[number] = None, CallOutcome(reason=f"{error}; {fix}")

    def _receive(self, worker: WorkerProcess, message: Message) -> None:
        if "ready" in message:
            worker.ready = True
            if worker.task is not None:
                self._send(worker, *worker.task)
            return
        outcome = CallOutcome(**message)
        if not worker.ready:
            self._lose(worker, outcome)  # it could not load the function
        elif worker.task is not None:
            self._finish(worker.task[0], outcome)
            worker.task = None

    def _lose(self, worker: WorkerProcess, outcome: CallOutcome) -> None:
        """Kill and remove a worker: `outcome` is that of its call."""
        worker.kill()
        self._workers.remove(worker)
        if worker.task is not None:
            self._began.pop(worker.task[0], None)
            self._found[worker.task[0]] = outcome

    def _stop(self, number: int) -> None:
        worker = next(w for w in self._workers if w.task is not None and w.task[0] == number)
        worker.kill()
        self._workers.remove(worker)
