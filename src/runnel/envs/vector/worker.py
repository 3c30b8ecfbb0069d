"""One child process of a vector: a vector of some of its environments, which steps them in shared memory.

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
from typing import Any, Protocol

import torch

from runnel.core import user_code
from runnel.core.errors import RunnelError
from runnel.core.process import ChildProcess, fork
from runnel.core.state import Array, Plain, State
from runnel.envs.vector.shared import read_message, send_message

STEP, TELL, DONE, TOLD, ERROR = b"s", b"t", b"d", b"f", b"e"
_OURS: set[int] = set()
"""This process's ends of the pipes to all its workers. A child closes its copies: a pipe ends when its last holder closes
it."""


class Hosted(Protocol):
    """A vector that a worker can step."""

    def reset(self, seed: int | None = None) -> object: ...

    def begin_at(self, episodes: list[int], *, seed: int, clock: int) -> None:
        """Start each environment at its given episode number, at step count `clock` of the vector."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...

    def close(self) -> None: ...


@dataclass
class Job:
    """The work of worker `number`: its environments, by their places in the whole vector."""

    number: int
    envs: slice
    make: Callable[..., Hosted]
    """Makes the vector of `envs`; takes a `watcher`, which is called with the place of an environment before its step."""
    step: Callable[[Any], Plain]
    """One step of that vector. What it returns is told to the parent; nothing is told for None or an empty list."""
    at_env: Array
    """By worker, in shared memory: the environment that it is stepping, -1 between steps."""
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
                told = job.step(vector)
                job.at_env[job.number] = -1
                os.write(answers, TOLD if told else DONE)
                if told:
                    send_message(answers, told)
                continue
            asked = read_message(orders)
            if vector is None:
                vector = job.make(watcher=lambda env: job.at_env.__setitem__(job.number, job.envs.start + env))
            reply = _obey(vector, asked)
            os.write(answers, DONE)
            send_message(answers, reply)
        except Exception as error:
            text = str(error) if isinstance(error, RunnelError) else user_code.told(error)
            known = isinstance(error, RunnelError) or user_code.is_users(error)
            os.write(answers, ERROR)
            send_message(answers, {"text": text, "trace": "" if known else traceback.format_exc()})
    if vector is not None:
        vector.close()


def _obey(vector: Hosted, told: State) -> State | None:
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
