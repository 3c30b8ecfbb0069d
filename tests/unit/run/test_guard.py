"""What a killed process had started is ended by its guard, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runnel.run.launchers.guard import ClusterGuard

PROGRAM = """
import subprocess, sys, time
from runnel.run.launchers.guard import ClusterGuard
own = subprocess.Popen(["sleep", "100"])
guard = ClusterGuard()
with guard:
    child = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; sleep 100"], stdout=subprocess.PIPE, start_new_session=True)
    grandchild = int(child.stdout.readline())
print(own.pid, child.pid, grandchild, flush=True)
time.sleep(100)
"""

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the kernel tells no children")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_dead(*pids: int) -> None:
    deadline = time.monotonic() + 20
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_started_under_a_guard_dies_with_a_killed_process() -> None:
    program = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    own, child, grandchild = map(int, program.stdout.readline().split())
    try:
        assert all(map(is_alive, (own, child, grandchild)))
        program.kill()
        wait_until_dead(child, grandchild)
        assert is_alive(own), "it was not started under the guard"
    finally:
        os.kill(own, signal.SIGKILL)
        program.communicate()


def test_a_closed_guard_leaves_nothing_behind() -> None:
    guard = ClusterGuard()
    with guard:
        left = subprocess.Popen(["sleep", "100"])
    guard.close()
    assert left.wait(timeout=20) == -signal.SIGKILL
    guard.close()
