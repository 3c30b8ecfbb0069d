"""Environments of the parallel API in child processes over shared memory (`envs/vector/host.py`), for slow simulators.

Each worker steps consecutive environments with a `SerialTeam`. So the episodes are those of `serial`, bit for bit, and a
checkpoint of one resumes in the other. When a worker dies or hangs, the episodes of all its environments are truncated and they
are made again (`restart`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.routes import Side
from runnel.core.state import Array, Plain, State
from runnel.envs.team.base import RowMemory, TeamBase, team_out
from runnel.envs.team.serial import SerialTeam
from runnel.envs.vector.contract import MAX_FAILURES, Episode
from runnel.envs.vector.cpu_base import episode_seed
from runnel.envs.vector.host import SPIN_S, EnvHost, num_cores, parts_of
from runnel.envs.vector.shared import shared_zeros, slice_out
from runnel.envs.vector.worker import Job


class ProcessTeam(TeamBase):
    """A `TeamVector` of `num_envs` environments made by `make` in `num_workers` processes (0: one a core)."""

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int,
        *,
        sides: Mapping[str, Side],
        seed: int,
        index0: int = 0,
        name: str = "",
        num_workers: int = 0,
        restart: bool = False,
        step_timeout_s: float = 0.0,
    ) -> None:
        self._runs = parts_of(num_envs, num_workers)
        self._rows = {policy: RowMemory(side, team_out(side, num_envs, shared_zeros)) for policy, side in sides.items()}
        super().__init__(self._rows, num_envs, seed=seed, index0=index0, name=name)
        self._make, self._restart = make, restart
        self._actions = {policy: _like_actions(rows) for policy, rows in self._rows.items()}
        self._open = {policy: np.zeros(rows.num_rows, bool) for policy, rows in self._rows.items()}
        """Rows that have decided in an episode that has not ended for them."""
        self._episode, self._start, self._failures = (np.zeros(num_envs, np.int64) for _ in range(3))
        self._at_env: Array = shared_zeros(len(self._runs), dtype=torch.int64).numpy()
        jobs = [self._job(number) for number in range(len(self._runs))]
        self._host = EnvHost(jobs, timeout_s=step_timeout_s or None, name=name, index0=index0)

    def _job(self, number: int) -> Job:
        """The job of a worker. Nothing in it holds this object, which has to end its workers as soon as nobody holds it."""
        envs = self._runs[number]
        own = {policy: rows.rows_of(envs) for policy, rows in self._rows.items()}
        make = partial(
            SerialTeam,
            self._make,
            envs.stop - envs.start,
            sides=self.sides,
            seed=self._seed,
            index0=self.index0 + envs.start,
            name=self.name,
            restart=self._restart,
            outs={policy: slice_out(self.outs[policy], rows) for policy, rows in own.items()},
        )
        step = partial(_step, actions={policy: x[own[policy]] for policy, x in self._actions.items()})
        spin_s = SPIN_S if len(self._runs) < num_cores() else 0.0  # a process that spins needs a core of its own
        return Job(number, envs, make, step, self._at_env, spin_s)

    # ---------------------------------------------------------------------------------------------------------- a step
    def reset(self, seed: int | None = None) -> None:
        self._seed = self._seed if seed is None else seed
        self._clock, self._ended = 0, []
        for x in (self._episode, self._start, *self._open.values()):
            x.fill(0)
        self._host.ask_all([{"op": "reset", "seed": self._seed}] * len(self._runs))
        self._clear()

    def send(self, actions: Mapping[str, Tensor]) -> None:
        for policy, rows in self._rows.items():
            rows.check_actions(actions[policy].cpu().numpy())  # before the copy, which would broadcast and round
            self._actions[policy].copy_(actions[policy])
            rows.keep()
            self._open[policy] |= rows.now.active
        self._clock += 1
        self._host.step()

    def ready(self) -> bool:
        return self._host.ready()

    def recv(self) -> None:
        told, lost = self._host.finish()
        for number, problem in lost.items():
            self._report(number, problem)
        self._collect(told, lost)
        for number in lost:
            self._replace(number)
        for policy, rows in self._rows.items():
            self._open[policy] &= ~(rows.now.terminated | rows.now.truncated)

    def _collect(self, told: Mapping[int, Plain], lost: Mapping[int, str]) -> None:
        """Join what workers told (final rows, episodes, faults) in the order of environments; then cut those of lost ones."""
        finals: dict[str, list[int]] = {policy: [] for policy in self._rows}
        for number in sorted(told):
            for policy, ends in told[number]["final_rows"].items():
                finals[policy] += self._rows[policy].gather(self._runs[number], ends, at=len(finals[policy]))
            self._ended += [Episode(int(e), float(total), int(n), dict(by)) for e, total, n, by in told[number]["episodes"]]
            self._faults += told[number]["faults"]
            over = [int(e) - self.index0 for e, *_ in told[number]["episodes"]]
            self._failures[over] = 0
            self._begun([*over, *(fault["env"] - self.index0 for fault in told[number]["faults"])])
        for policy, rows in self._rows.items():
            rows.out.final_rows = finals[policy]
        for number in lost:
            envs = range(self._runs[number].start, self._runs[number].stop)
            for policy, rows in self._rows.items():
                for env in envs:
                    decided = rows.of_env(env, self._open[policy])
                    rows.cut(env, [agent for agent, has in zip(rows.side.agents, decided, strict=True) if has])
            self._begun(list(envs))

    def _begun(self, envs: list[int]) -> None:
        """Another episode of these environments has begun."""
        self._episode[envs] += 1
        self._start[envs] = self._clock

    # ---------------------------------------------------------------------------------------------------- lost workers
    def _report(self, number: int, problem: str) -> None:
        """Record a fault for each environment of a lost worker, or raise an error about the one that broke."""
        broke = int(self._at_env[number])
        for place in range(self._runs[number].start, self._runs[number].stop):
            env, episode, step = self.index0 + place, int(self._episode[place]), self._clock - int(self._start[place])
            seed, kind = episode_seed(self._seed, env, episode), "env_failed" if broke in (place, -1) else "env_lost"
            self._failures[place] += kind == "env_failed"
            if kind == "env_failed" and (not self._restart or self._failures[place] > MAX_FAILURES):
                where = f"environment {self.name!r} (index {env}, episode {episode}, step {step})"
                raise DataError(f"{where} {problem} [its episode began with reset(seed={seed})]")
            fault = {"kind": kind, "env": env, "episode": episode, "step": step, "seed": seed, "error": problem}
            self._faults.append(fault)

    def _replace(self, number: int) -> None:
        """Start a new worker for the environments of a lost one; it shows their first observations."""
        order = {"op": "begin_at", "episodes": self._episode[self._runs[number]].tolist()}
        self._host.replace(number, {**order, "seed": self._seed, "clock": self._clock})

    # ----------------------------------------------------------------------------------------------------------- state
    def snapshot(self) -> State:
        parts = self._host.ask_all([{"op": "snapshot"}] * len(self._runs))
        return {**self._save_outputs(), "envs": [env for part in parts for env in part["envs"]]}

    def restore(self, state: State) -> None:
        self._load_outputs(state)
        for place, saved in enumerate(state["envs"]):
            self._episode[place], self._start[place] = saved["episode"], saved["start"]
            decided = set(saved["acted"]) - set(saved["ended"])
            for policy, rows in self._rows.items():
                rows.of_env(place, self._open[policy])[:] = [agent in decided for agent in rows.side.agents]
        orders = []
        for envs in self._runs:
            own = {policy: rows.rows_of(envs) for policy, rows in self._rows.items()}
            out = {policy: {k: np.asarray(x)[own[policy]] for k, x in saved.items()} for policy, saved in state["out"].items()}
            part = {**state, "out": out, "ended": [], "envs": state["envs"][envs]}
            orders.append({"op": "restore", "state": part})
        self._host.ask_all(orders)

    def close(self) -> None:
        self._host.close()


def _like_actions(rows: RowMemory) -> Tensor:
    """Shared memory for the actions of one policy."""
    spec = rows.side.spec.action
    return shared_zeros(rows.num_rows, *spec.shape, dtype=torch.int64 if spec.dtype == torch.int64 else torch.float32)


def _step(vector: SerialTeam, *, actions: Mapping[str, Tensor]) -> Plain:
    """A step of a worker: what there is to tell beside what lies in shared memory; nothing in most steps."""
    vector.send(actions)
    finals = {policy: out.final_rows for policy, out in vector.outs.items() if out.final_rows}
    episodes = [[e.env, e.total, e.length, dict(e.by_policy)] for e in vector.episodes()]
    faults = vector.faults()
    return {"final_rows": finals, "episodes": episodes, "faults": faults} if finals or episodes or faults else None
