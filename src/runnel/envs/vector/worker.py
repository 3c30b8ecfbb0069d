"""One child process of a `ProcessVector`: a `SerialVector` over some of its rows, in shared memory.

It is forked, so it takes any factory and starts in milliseconds. It never uses a device, has one thread, and dies with its
parent.
"""

from __future__ import annotations

import os
import select
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from runnel.core import user_code
from runnel.core.errors import RunnelError
from runnel.core.process import ChildProcess, fork
from runnel.core.state import Array, State
from runnel.envs.vector.serial import SerialVector
from runnel.envs.vector.shared import read_message, send_message, shared_zeros

STEP, TELL, DONE, FAULTS, ERROR = b"s", b"t", b"d", b"f", b"e"
_OURS: set[int] = set()
"""This process's ends of the pipes to all its workers. A child closes its copies: a pipe ends when its last holder closes
it."""


class StepReport:
    """What workers report of a step beside its `StepOut`, in memory that they share with their parent."""

    def __init__(self, num_envs: int, num_workers: int) -> None:
        def array(size: int, dtype: torch.dtype = torch.int64) -> Array:
            return shared_zeros(size, dtype=dtype).numpy()

        self.at_row = array(num_workers)
        """The row that each worker is stepping, -1 between steps."""
        self.num_final = array(num_workers)
        """How many episodes of each worker ended in the step."""
        self.final_rows = array(num_envs)
        """From the first row of a worker on, those of its rows whose episodes ended (counted in the whole vector)."""
        self.totals, self.lengths = array(num_envs, torch.float64), array(num_envs)
        """Returns and lengths of those episodes, in the same places. A length of -1: the episode is not counted."""


@dataclass
class Job:
    """The work of worker `number`: its rows, and the memory for them."""

    number: int
    rows: slice
    index0: int
    make: Callable[..., SerialVector]
    """Makes the environments of `rows`; takes their `watcher`."""
    actions: Tensor
    report: StepReport
    spin_s: float


class EnvWorker:
    """The process as its parent sees it: two pipes and a process id."""

    def __init__(self, job: Job) -> None:
        self.job = job
        order_read, self.orders = os.pipe()
        self.answers, answer_write = os.pipe()
        self.child: ChildProcess = fork(lambda: _live(job, order_read, answer_write, (self.orders, self.answers, *_OURS)))
        os.close(order_read)
        os.close(answer_write)
        _OURS.update((self.orders, self.answers))
        self.poll = select.poll()
        self.poll.register(self.answers, select.POLLIN)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for a byte, or for the end of the process; False after `timeout_s`."""
        if timeout_s is None and not self.job.spin_s:
            return True  # the read that follows waits by itself
        end = time.perf_counter() + self.job.spin_s
        while not self.poll.poll(0):
            if time.perf_counter() >= end:
                return bool(self.poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000.0)))
        return True

    def hang_up(self) -> None:
        """Close the pipes. A child that reads from them then ends by itself."""
        for fd in {self.orders, self.answers} & _OURS:
            _OURS.discard(fd)
            os.close(fd)

    def end(self, *, patience_s: float = 0.0) -> str:
        """End the process. Returns how it ended. May be called twice."""
        self.hang_up()
        self.child.end(patience_s)
        return self.child.how()


# ------------------------------------------------------------------------------------------------------------ the child
def _live(job: Job, orders: int, answers: int, others: tuple[int, ...]) -> None:
    """Run the child until it ends. `others` are ends of pipes that belong to its parent."""
    for fd in others:
        os.close(fd)
    torch.set_num_threads(1)
    with suppress(EOFError):  # the parent has hung up in the middle of an order
        _serve(job, orders, answers)


def _serve(job: Job, orders: int, answers: int) -> None:
    vector = None
    poll = select.poll()
    poll.register(orders, select.POLLIN)
    while True:
        end = time.perf_counter() + job.spin_s
        while job.spin_s and not poll.poll(0) and time.perf_counter() < end:
            pass
        order = os.read(orders, 1)
        if not order:
            break
        try:
            if order == STEP:
                assert vector is not None
                _step(vector, job)
                faults = vector.faults()
                os.write(answers, FAULTS if faults else DONE)
                if faults:
                    send_message(answers, faults)
                continue
            told = read_message(orders)
            if vector is None:
                vector = job.make(watcher=lambda row: job.report.at_row.__setitem__(job.number, job.rows.start + row))
            reply = _obey(vector, told)
            os.write(answers, DONE)
            send_message(answers, reply)
        except Exception as error:
            text = str(error) if isinstance(error, RunnelError) else user_code.told(error)
            known = isinstance(error, RunnelError) or user_code.is_users(error)
            os.write(answers, ERROR)
            send_message(answers, {"text": text, "trace": "" if known else traceback.format_exc()})
    if vector is not None:
        vector.close()


def _obey(vector: SerialVector, told: State) -> State | None:
    match told["op"]:
        case "reset":
            vector.reset(told["seed"])
        case "begin_at":
            vector.begin_at(told["episodes"], seed=told["seed"], clock=told["clock"])
        case "snapshot":
            return vector.snapshot()
        case "restore":
            vector.restore(told["state"])
    return None


def _step(vector: SerialVector, job: Job) -> None:
    vector.step(job.actions)
    rows, report, first = vector.out.final_rows, job.report, job.rows.start
    assert rows is not None
    report.num_final[job.number] = len(rows)
    if rows:
        ended = {e.env: e for e in vector.episodes()}
        for at, row in enumerate(rows, start=first):
            report.final_rows[at] = first + row
            e = ended.get(job.index0 + first + row)
            report.totals[at], report.lengths[at] = (e.total, e.length) if e is not None else (0.0, -1)
    report.at_row[job.number] = -1
