"""Environments in child processes over shared memory: for simulators that take more than a hundred microseconds a step.

Each worker steps consecutive rows with a `SerialVector`. So the episodes are those of `serial`, bit for bit, and a checkpoint
of one resumes in the other. Actions and results are written in place; in a step, one byte each way wakes the process that
waits. When a worker dies or hangs, the episodes of all its rows are truncated and its environments are made again
(`on_error="restart"`).
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import ConfigError, DataError
from runnel.core.spaces import EnvSpec
from runnel.core.state import Plain, State
from runnel.envs.vector.contract import MAX_FAILURES, Episode, StepOut, allocate
from runnel.envs.vector.cpu_base import CpuVector, episode_seed
from runnel.envs.vector.memory import check_memory
from runnel.envs.vector.serial import SerialVector
from runnel.envs.vector.shared import read_message, send_message, shared_zeros, slice_out
from runnel.envs.vector.worker import ERROR, FAULTS, STEP, TELL, EnvWorker, Job, StepReport

if TYPE_CHECKING:
    import gymnasium as gym

SPIN_S = 50e-6
"""A process looks for its byte this long before it sleeps: waking up takes as long."""
CLOSE_S = 5.0
"""Time that a worker has to close its environments before it is killed."""
LOOKS = 8
"""How many times within `step_timeout_s` the parent looks which environment a worker is stepping."""


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ProcessVector(CpuVector):
    """`num_envs` environments made by `make` in `num_workers` processes, each with about as many consecutive rows."""

    def __init__(
        self,
        make: Callable[[], gym.Env],
        num_envs: int,
        *,
        spec: EnvSpec,
        seed: int,
        index0: int = 0,
        name: str = "",
        num_workers: int = 0,
        restart: bool = False,
        step_timeout_s: float = 0.0,
        check: str = "",
    ) -> None:
        if not hasattr(os, "fork"):
            raise ConfigError("vector.backend", "processes", "this system cannot fork processes; use serial")
        num_workers = min(num_workers or num_cores(), num_envs)
        check_memory(spec, num_envs, num_steps=0, num_segments=0, num_workers=num_workers)
        out = allocate(spec, num_envs, shared_zeros)
        super().__init__(spec, num_envs, seed=seed, index0=index0, name=name, out=out, check=check)
        self._make, self._restart, self._timeout_s = make, restart, step_timeout_s or None
        edges = [num_envs * worker // num_workers for worker in range(num_workers + 1)]
        self._runs = [slice(first, last) for first, last in pairwise(edges)]
        kind = torch.int64 if spec.action.dtype == torch.int64 else torch.float32
        self._actions = shared_zeros(num_envs, *spec.action.shape, dtype=kind)
        self._shared = StepReport(num_envs, num_workers)
        self._episode, self._start, self._failures = (np.zeros(num_envs, np.int64) for _ in range(3))
        self._workers: list[EnvWorker] = []
        self._finalizer = weakref.finalize(self, _end_all, self._workers, os.getpid())
        for number in range(num_workers):
            self._workers.append(self._fork(number))
        self._waiting: list[EnvWorker] = []
        self._deadline: float | None = None

    def _fork(self, number: int) -> EnvWorker:
        rows = self._runs[number]
        self._shared.at_row[number] = -1
        job = Job(
            number,
            rows,
            self.index0,
            # not a lambda, which would hold this object: it has to end its workers as soon as nobody holds it
            partial(
                SerialVector,
                self._make,
                rows.stop - rows.start,
                seed=self._seed,
                index0=self.index0 + rows.start,
                name=self.name,
                restart=self._restart,
                out=slice_out(self.out, rows),
                check=self.check,
            ),
            self._actions[rows],
            self._shared,
            # a process that spins needs a core of its own
            spin_s=SPIN_S if len(self._runs) < num_cores() else 0.0,
        )
        return EnvWorker(job)

    # ---------------------------------------------------------------------------------------------------------- a step
    def reset(self, seed: int | None = None) -> StepOut:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended = 0, []
        self._episode.fill(0)
        self._start.fill(0)
        self._ask_all([{"op": "reset", "seed": self._seed}] * len(self._workers))
        self.out.final_rows = []
        return self.out

    def send(self, actions: Tensor) -> None:
        self._check_actions(actions.cpu().numpy())  # before the copy, which would broadcast and round
        self._actions.copy_(actions)
        self._clock += 1
        self._waiting = list(self._workers)
        self._deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        for worker in self._workers:
            self._write(worker, STEP)

    def _write(self, worker: EnvWorker, data: bytes) -> None:
        with suppress(BrokenPipeError):  # the worker is dead; `_finish` or `_hear` will report it
            os.write(worker.orders, data)

    def ready(self) -> bool:
        late = self._deadline is not None and time.monotonic() > self._deadline
        return late or all(worker.poll.poll(0) for worker in self._waiting)

    def recv(self) -> StepOut:
        waiting, self._waiting = self._waiting, []
        problems = {worker.job.number: self._finish(worker) for worker in waiting}
        lost = {number: problem for number, problem in problems.items() if problem}
        for number, problem in lost.items():
            self._report(number, problem)
        self._collect(lost)
        for number in lost:
            self._replace(number)
        return self.out

    def _finish(self, worker: EnvWorker) -> str:
        """Wait for a worker's step. Returns what went wrong with its process; empty if nothing did."""
        if not self._await(worker):
            worker.end()
            return f"hung: a step took more than {self._timeout_s:g} s (vector.step_timeout_s)"
        try:
            token = os.read(worker.answers, 1)
            if token == FAULTS:
                self._faults += read_message(worker.answers)
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
        row, deadline = worker.job.rows.start, self._deadline
        while not worker.wait(min(deadline - time.monotonic(), self._timeout_s / LOOKS)):
            # the worker went on to another environment: that one has the whole time again
            if (now := int(self._shared.at_row[worker.job.number])) != row:
                row, deadline = now, time.monotonic() + self._timeout_s
            elif time.monotonic() >= deadline:
                return False
        return True

    def _collect(self, lost: Mapping[int, str]) -> None:
        """Join the final rows of all workers, in the order of rows."""
        shared = self._shared
        rows: list[int] = []
        if not lost and not shared.num_final.any():
            self.out.final_rows = []
            return
        for number, run in enumerate(self._runs):
            if number in lost:
                self._salvage(number)
            for at in range(run.start, run.start + int(shared.num_final[number])):
                if len(rows) != at:  # close the gap that an earlier worker left
                    for final in self._final.values():
                        final[len(rows)] = final[at]
                row = int(shared.final_rows[at])
                if shared.lengths[at] >= 0:
                    self._failures[row] = 0
                    self._ended.append(Episode(self.index0 + row, float(shared.totals[at]), int(shared.lengths[at])))
                rows.append(row)
        self.out.final_rows = rows
        if rows:
            self._episode[rows] += 1
            self._start[rows] = self._clock

    # ---------------------------------------------------------------------------------------------------- lost workers
    def _salvage(self, number: int) -> None:
        """Complete the step of a worker that was lost in it. Rows before the one that broke have stepped, the others have not.

        An episode that ended in this step keeps its end. All others are truncated: at the new observation where the row has
        stepped, else at the last good one with reward 0.
        """
        run, shared = self._runs[number], self._shared
        broke = int(shared.at_row[number])
        stepped = max(broke, run.start)
        ended = [r for r in range(run.start, stepped) if self._terminated[r] or self._truncated[r]]
        finals = {k: final[run.start : run.start + len(ended)].copy() for k, final in self._final.items()}
        self._reward[stepped : run.stop] = 0.0
        for at, row in enumerate(range(run.start, run.stop), start=run.start):
            for key, final in self._final.items():
                final[at] = finals[key][ended.index(row)] if row in ended else self._now[key][row]
            if row not in ended:
                self._terminated[row], self._truncated[row] = False, True
            shared.final_rows[at], shared.lengths[at] = row, -1
        shared.num_final[number] = run.stop - run.start

    def _report(self, number: int, problem: str) -> None:
        """Record a fault for each environment of a lost worker, or raise an error about the one that broke."""
        run, broke = self._runs[number], int(self._shared.at_row[number])
        for row in range(run.start, run.stop):
            env, episode, step = self.index0 + row, int(self._episode[row]), self._clock - int(self._start[row])
            kind = "env_failed" if broke in (row, -1) else "env_lost"
            fault = {"kind": kind, "env": env, "episode": episode, "step": step, "error": problem}
            fault["seed"] = episode_seed(self._seed, env, episode)
            self._failures[row] += kind == "env_failed"
            if kind == "env_failed" and (not self._restart or self._failures[row] > MAX_FAILURES):
                raise DataError(
                    f"environment {self.name!r} (index {env}, episode {episode}, step {step}) {problem} "
                    f"[its episode began with reset(seed={fault['seed']})]"
                )
            self._faults.append(fault)

    def _replace(self, number: int) -> None:
        """Start a new worker for the rows of a lost one."""
        run = self._runs[number]
        self._workers[number] = fresh = self._fork(number)
        told = {"op": "begin_at", "episodes": self._episode[run].tolist(), "seed": self._seed, "clock": self._clock}
        # the worker's resets write into this memory, which still holds the step that truncates the old episodes
        flags = self._reward[run].copy(), self._terminated[run].copy(), self._truncated[run].copy()
        self._tell(fresh, told)
        self._hear(fresh)
        self._reward[run], self._terminated[run], self._truncated[run] = flags

    # -------------------------------------------------------------------------------------------------------- messages
    def _ask_all(self, told: list[State]) -> list[Plain]:
        for worker, message in zip(self._workers, told, strict=True):
            self._tell(worker, message)
        return [self._hear(worker) for worker in self._workers]

    def _tell(self, worker: EnvWorker, told: State) -> None:
        with suppress(BrokenPipeError):  # `_hear` will report it
            os.write(worker.orders, TELL)
            send_message(worker.orders, told)

    def _hear(self, worker: EnvWorker) -> Plain:
        try:
            token = os.read(worker.answers, 1)
            answer = read_message(worker.answers)
        except EOFError:
            run = worker.job.rows
            first, last = self.index0 + run.start, self.index0 + run.stop - 1
            how = worker.end(patience_s=1.0)
            raise DataError(f"the process of environments {self.name!r} (index {first} to {last}) {how}") from None
        if token == ERROR:
            raise _as_error(answer)
        return answer

    def snapshot(self) -> State:
        parts = self._ask_all([{"op": "snapshot"}] * len(self._workers))
        return {**self._save_outputs(), "envs": [env for part in parts for env in part["envs"]]}

    def restore(self, state: State) -> None:
        self._load_outputs(state)
        for row, saved in enumerate(state["envs"]):
            self._episode[row], self._start[row] = saved["episode"], saved["start"]
        told = []
        for run in self._runs:
            out = {k: np.asarray(x)[run] for k, x in state["out"].items()}
            told.append({"op": "restore", "state": {**state, "out": out, "ended": [], "envs": state["envs"][run]}})
        self._ask_all(told)

    def close(self) -> None:
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
