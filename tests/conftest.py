"""Shared by all tests: one torch thread (two would fight over the cores), the order of files, the process that forks those of
the local launcher, a place for what is noted of runs, and what several make use of: the tiny slices that system tests run, and
the ends of remote streams."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from runnel.run.launchers import local
from runnel.run.launchers.fork_server import ForkServer

torch.set_num_threads(1)
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="runnel-tests-")  # not where the user's own runs are noted
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
for folder in ("system", "contract", "unit/llm", "unit/report"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

FIRST = (
    "tests/unit/kernels/test_loops.py",
    "tests/unit/kernels/test_numba_networks.py",
    "tests/system/",
    "tests/parity/",
    "tests/learning/",
    "tests/test_",
    "tests/contract/",
)
"""What compiles kernels for all others, then files that take long, so that no core waits at the end for the other one."""
WATCH_PROCESSES = {"test_faults", "test_restarts", "test_reference_workers", "test_several_trainers"}
"""They count processes, and kill them: their runs start all of their own."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST)))


class LentForkServer(ForkServer):
    """Stays when a run ends, for the next one: it need not import torch and transformers again."""

    def close(self) -> None:
        if self.gone():
            super().close()


class Lending:
    def __init__(self) -> None:
        self._made: dict[object, LentForkServer] = {}

    def lend(self, live: str, log: Path, *, early: Sequence[str], env: Mapping[str, str] | None) -> LentForkServer:
        """One for each need. Another if a test has changed what a new process would find."""
        found = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        key = (live, tuple(early), tuple((env or {}).items()), Path.cwd(), tuple(sys.path), tuple(found.items()))
        if key not in self._made or self._made[key].gone():
            while len(self._made) > 1:
                ForkServer.close(self._made.pop(next(iter(self._made))))
            self._made[key] = LentForkServer(live, log, early=early, env=env)
        return self._made[key]

    def close(self) -> None:
        for fork_server in self._made.values():
            ForkServer.close(fork_server)
        self._made.clear()


LENDING = Lending()


@pytest.fixture(autouse=True)
def _one_fork_server_for_many_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.node.path.stem in WATCH_PROCESSES:
        LENDING.close()
    else:
        monkeypatch.setattr(local, "ForkServer", LENDING.lend)


@pytest.fixture(scope="session", autouse=True)
def _no_fork_server_is_left() -> Iterator[None]:
    yield
    LENDING.close()
