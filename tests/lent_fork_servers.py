"""Processes for tests that need not import torch and transformers again: fork servers that stay when a run ends, for the next
one, and programs that are forked instead of started."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from runnel.core.process import die_with_parent
from runnel.core.resolve import load_object
from runnel.run.launchers.fork_server import Fork, ForkServer
from runnel.run.launchers.local import EARLY_FOR_TEXT

OURS_ALONE = {"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR", "PYTHONBREAKPOINT", "PYTHONPATH", "RUNNEL_TEST_OWNER"}
"""What pytest, Ray and a part of torch put into this process's environment on the way, beside `RAY_...`: no child of a fork
server needs it, and each gets a PYTHONPATH of its own."""


def with_ours(early: Sequence[str]) -> tuple[str, ...]:
    """What is imported before a process is forked, with what its children would import, each for itself."""
    return (*early, "early_for_runs", *(("early_for_text",) if {*EARLY_FOR_TEXT} <= {*early} else ()))


class LentForkServer(ForkServer):
    """Stays when a run ends, for the next one."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        if self.gone():
            super().close()


class Lending:
    """What the local launcher is given in place of fork servers of its own."""

    def __init__(self) -> None:
        self._made: dict[object, LentForkServer] = {}

    def lend(self, live: str, log: Path, *, early: Sequence[str], env: Mapping[str, str] | None) -> LentForkServer:
        """One for each need. Another if a test has changed what a new process would find."""
        found = {n: value for n, value in os.environ.items() if n not in OURS_ALONE and not n.startswith("RAY_")}
        key = (live, tuple(early), tuple((env or {}).items()), Path.cwd(), tuple(sys.path), tuple(found.items()))
        if key not in self._made or self._made[key].gone():
            while len(self._made) > 1:
                ForkServer.close(self._made.pop(next(iter(self._made))))
            self._made[key] = LentForkServer(live, log, early=with_ours(early), env=env)
        self._made[key] = server = self._made.pop(key)  # the last one: the one that was not used for longest ends first
        return server

    def pids(self) -> set[int]:
        """The servers that stay: no run has left them."""
        return {server.pid for server in self._made.values()}

    def close(self) -> None:
        for fork_server in self._made.values():
            ForkServer.close(fork_server)
        self._made.clear()


LENDING = Lending()


class Programs:
    """Programs that are forked from a process which has imported `early`: each calls `work` (module:function) with an order."""

    def __init__(self, work: str, log: Path, *, early: Sequence[str] = ()) -> None:
        self._work = work
        self._server = ForkServer(f"{__name__}:live", log, early=(work.partition(":")[0], *with_ours(early)))

    def start(self, order: Mapping[str, Any]) -> Fork:
        """Start one; it has begun when this returns."""
        read, write = os.pipe()
        with open(write, "w") as file:
            json.dump([self._work, order], file)
        fork = self._server.fork(read)
        os.close(read)
        while fork.pid is None:
            assert not self._server.gone(), "the process that forks programs has ended"
            self._server.wait(1.0)
        return fork

    def close(self) -> None:
        """End all of them."""
        self._server.close()


def live(parent: int, fds: list[int], held: list[int]) -> int:
    """Main function of a forked program: signals have their usual effects, as in a program that a person has started."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    with open(fds[0]) as file:
        work, order = json.load(file)
    load_object(work, "work")(order)
    return 0
