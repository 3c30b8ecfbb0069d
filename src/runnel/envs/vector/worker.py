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
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from runnel.core import user_code
from runnel.core.errors import RunnelError
from runnel.core.process import ChildProcess, fork
from runnel.core.state import Array, State
from runnel.envs.vector.contract import StepOut
from runnel.envs.vector.serial import SerialVector
from runnel.envs.vector.shared import read_message, send_message

if TYPE_CHECKING:
    import gymnasium as gym

STEP, TELL, DONE, FAULTS, ERROR = b"s", b"t", b"d", b"f", b"e"
_OURS: set[int] = set()
"""This process's ends of the pipes to all its workers. A child closes its copies: a pipe ends when its last holder closes
it."""


@dataclass
class Job:
    """The work of one worker: its rows, and the memory for them."""

    make: Callable[[], gym.Env]
    rows: slice
    out: StepOut
    actions: Tensor
    num_final: Array
    """`[num_workers]`: how many episodes of this worker ended in the step."""
    final_rows: Array
    """`[B]`: from `rows.start` on, the rows whose episodes ended (counted in the whole vector)."""
    totals: Array
    lengths: Array
    """Returns and lengths of those episodes, in the same places."""
    at_row: Array
    """`[num_workers]`: the row that is being stepped, -1 between steps."""
    number: int
    seed: int
    index0: int
    name: str
    restart: bool
    check: str
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
                vector = _build(job)
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


def _build(job: Job) -> SerialVector:
    rows = job.rows
    vector = SerialVector(
        job.make,
        rows.stop - rows.start,
        seed=job.seed,
        index0=job.index0 + rows.start,
        name=job.name,
        restart=job.restart,
        out=job.out,
        check=job.check,
    )
    vector.watch(lambda row: job.at_row.__setitem__(job.number, rows.start + row))
    return vector


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
    rows = vector.out.final_rows
    assert rows is not None
    job.num_final[job.number] = len(rows)
    if rows:
        first = job.rows.start
        ended = {e.env: e for e in vector.episodes()}
        for f, row in enumerate(rows):
            job.final_rows[first + f] = first + row
            e = ended.get(job.index0 + first + row)
            job.totals[first + f], job.lengths[first + f] = (e.total, e.length) if e is not None else (0.0, -1)
    job.at_row[job.number] = -1
