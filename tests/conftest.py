"""Shared by all tests: one torch thread (two would fight over the cores), the order of files, the process that forks those of
the local launcher, a place for what is noted of runs, and what several make use of: the tiny slices that system tests run, and
the ends of remote streams."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from lent_fork_servers import LENDING
from runnel.run.launchers import local

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
    "tests/unit/llm/",
    "tests/unit/run/",
)
"""What compiles kernels for all others, then files that take long, so that no core waits at the end for the other one."""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What collecting makes stays to the end: the garbage collector would go through all of it again and again, here and in
    tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((i for i, start in enumerate(FIRST) if item.nodeid.startswith(start)), len(FIRST)))


@pytest.fixture(autouse=True)
def _one_fork_server_for_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ForkServer", LENDING.lend)


@pytest.fixture(scope="session", autouse=True)
def _no_fork_server_is_left() -> Iterator[None]:
    yield
    LENDING.close()
