"""Environments in child processes over shared memory: for simulators that take more than a hundred microseconds a step.

Each worker steps consecutive rows with a `SerialVector`. So the episodes are those of `serial`, bit for bit, and a checkpoint
of one resumes in the other. Actions and results are written in place; in a step, one byte each way wakes the process that
waits. When a worker dies or hangs, the episodes of all its rows are truncated and its environments are made again
(`on_error="restart"`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.spaces import EnvSpec
from runnel.core.state import Array, Plain, State
from runnel.envs.vector.contract import MAX_FAILURES, Episode, StepOut, allocate
from runnel.envs.vector.cpu_base import CpuVector, episode_seed
from runnel.envs.vector.host import SPIN_S, EnvHost, num_cores, parts_of
from runnel.envs.vector.memory import check_memory
from runnel.envs.vector.serial import SerialVector
from runnel.envs.vector.shared import shared_zeros, slice_out
from runnel.envs.vector.worker import Job

if TYPE_CHECKING:
    import gymnasium as gym


class StepReport:
    """What workers report of a step beside its `StepOut`, in memory that they share with their parent."""

    def __init__(self, num_envs: int, num_workers: int, channels: Sequence[str] = ()) -> None:
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
        self.channels = {name: array(num_envs, torch.float64) for name in channels}
        """Their sums by channel."""

    def step(self, vector: SerialVector, *, actions: Tensor, number: int, rows: slice, index0: int) -> Plain:
        """A step of a worker, which reports its ends here; returns its faults."""
        vector.step(actions)
        ends = vector.out.final_rows
        assert ends is not None
        self.num_final[number] = len(ends)
        if ends:
            ended = {e.env: e for e in vector.episodes()}
            for at, row in enumerate(ends, start=rows.start):
                self.final_rows[at] = rows.start + row
                e = ended.get(index0 + rows.start + row)
                self.totals[at], self.lengths[at] = (e.total, e.length) if e is not None else (0.0, -1)
                for name, sums in self.channels.items():
                    sums[at] = e.channels[name] if e is not None else 0.0
        return vector.faults()


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
        tasks: bool = False,
    ) -> None:
        self._runs = parts_of(num_envs, num_workers)
        num_workers = len(self._runs)
        check_memory(spec, num_envs, num_steps=0, num_segments=0, num_workers=num_workers)
        out = allocate(spec, num_envs, shared_zeros, tasks=tasks)
        super().__init__(spec, num_envs, seed=seed, index0=index0, name=name, out=out, check=check)
        self._make, self._restart = make, restart
        kind = torch.int64 if spec.action.dtype == torch.int64 else torch.float32
        self._actions = shared_zeros(num_envs, *spec.action.shape, dtype=kind)
        self._shared = StepReport(num_envs, num_workers, spec.channels.names)
        self._episode, self._start, self._failures = (np.zeros(num_envs, np.int64) for _ in range(3))
        jobs = [self._job(number) for number in range(num_workers)]
        self._host = EnvHost(jobs, timeout_s=step_timeout_s or None, name=name, index0=index0)

    def _job(self, number: int) -> Job:
        """The job of a worker. Nothing in it holds this object, which has to end its workers as soon as nobody holds it."""
        rows, shared = self._runs[number], self._shared
        make = partial(
            SerialVector,
            self._make,
            rows.stop - rows.start,
            seed=self._seed,
            index0=self.index0 + rows.start,
            name=self.name,
            restart=self._restart,
            out=slice_out(self.out, rows),
            check=self.check,
            channels=self.spec.channels,
        )
        step = partial(shared.step, actions=self._actions[rows], number=number, rows=rows, index0=self.index0)
        # a process that spins needs a core of its own
        spin_s = SPIN_S if len(self._runs) < num_cores() else 0.0
        return Job(number, rows, make, step, shared.at_row, spin_s)

    # ---------------------------------------------------------------------------------------------------------- a step
    def reset(self, seed: int | None = None) -> StepOut:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended = 0, []
        self._episode.fill(0)
        self._start.fill(0)
        self._host.ask_all([{"op": "reset", "seed": self._seed}] * len(self._runs))
        self.out.final_rows = []
        return self.out

    def send(self, actions: Tensor) -> None:
        self._check_actions(actions.cpu().numpy())  # before the copy, which would broadcast and round
        self._actions.copy_(actions)
        self._clock += 1
        self._host.step()

    def ready(self) -> bool:
        return self._host.ready()

    def recv(self) -> StepOut:
        told, lost = self._host.finish()
        for number in sorted(told):
            self._faults += told[number]
        for number, problem in lost.items():
            self._report(number, problem)
        self._collect(lost)
        for number in lost:
            self._replace(number)
        return self.out

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
                    sums = {name: float(totals[at]) for name, totals in shared.channels.items()}
                    e = Episode(self.index0 + row, float(shared.totals[at]), int(shared.lengths[at]), channels=sums)
                    self._ended.append(e)
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
        for numbers in (self._reward, *self._channels.values()):
            numbers[stepped : run.stop] = 0.0
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
        told = {"op": "begin_at", "episodes": self._episode[run].tolist(), "seed": self._seed, "clock": self._clock}
        # the worker's resets write into this memory, which still holds the step that truncates the old episodes
        step = (self._reward, self._terminated, self._truncated, *self._channels.values())
        kept = [numbers[run].copy() for numbers in step]
        self._host.replace(number, told)
        for numbers, before in zip(step, kept, strict=True):
            numbers[run] = before

    def snapshot(self) -> State:
        parts = self._host.ask_all([{"op": "snapshot"}] * len(self._runs))
        return {**self._save_outputs(), "envs": [env for part in parts for env in part["envs"]]}

    def restore(self, state: State) -> None:
        self._load_outputs(state)
        for row, saved in enumerate(state["envs"]):
            self._episode[row], self._start[row] = saved["episode"], saved["start"]
        told = []
        for run in self._runs:
            out = {k: np.asarray(x)[run] for k, x in state["out"].items()}
            part = {**state, "out": out, "ended": [], "envs": state["envs"][run]}
            part.pop("tasks", None)  # they are in memory that the workers share, and there by now
            told.append({"op": "restore", "state": part})
        self._host.ask_all(told)

    def close(self) -> None:
        self._host.close()
