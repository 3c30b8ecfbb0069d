"""The machine under a measurement: what it is, and whether anything else is running on it.

Load is taken from `/proc/stat`, in cores: 0.5 means that one core was busy for half of the time. Where there is no
`/proc/stat` the load is unknown (None), and a result says so.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROC_STAT = Path("/proc/stat")
IDLE_CORES = 0.15
"""At most so many cores busy with anything else: that counts as idle."""
PR_SET_CHILD_SUBREAPER = 36
_adopting: list[int] = []


@dataclass(frozen=True)
class Ticks:
    """Time of all cores since boot in clock ticks: in total, and idle."""

    total: int
    idle: int


def parse_stat(text: str) -> Ticks:
    """The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal (guest time is part of user).

    >>> parse_stat("cpu  10 0 5 80 5 0 0 0 0 0")
    Ticks(total=100, idle=85)
    """
    numbers = [int(n) for n in text.split("\n", 1)[0].split()[1:9]]
    return Ticks(total=sum(numbers), idle=numbers[3] + numbers[4])


def read_ticks() -> Ticks | None:
    """The counters now; None where the system has no `/proc/stat`."""
    return parse_stat(PROC_STAT.read_text()) if PROC_STAT.is_file() else None


def busy_cores(before: Ticks, after: Ticks, *, num_cores: int) -> float:
    """Cores that were busy between two readings.

    >>> busy_cores(Ticks(0, 0), Ticks(200, 150), num_cores=2)
    0.5
    """
    total = after.total - before.total
    return num_cores * (1.0 - (after.idle - before.idle) / total) if total > 0 else 0.0


def sample_load(seconds: float = 1.0) -> float | None:
    """Cores busy over the next `seconds`; the caller sleeps meanwhile."""
    before = read_ticks()
    if before is None:
        return None
    time.sleep(seconds)
    after = read_ticks()
    assert after is not None
    return busy_cores(before, after, num_cores=os.cpu_count() or 1)


@dataclass(frozen=True)
class Idle:
    """How a wait for an idle machine ended: the last load seen, the seconds waited, and a warning if it was not idle."""

    load: float | None
    waited_s: float
    warning: str = ""


def wait_idle(
    limit_s: float,
    *,
    most: float = IDLE_CORES,
    sample: Callable[[], float | None] = sample_load,
    now: Callable[[], float] = time.monotonic,
) -> Idle:
    """Wait until a sample shows at most `most` busy cores, but no longer than `limit_s`."""
    start = now()
    while True:
        load = sample()
        waited = now() - start
        if load is None:
            return Idle(None, waited, "the load is unknown: this system has no /proc/stat")
        if load <= most:
            return Idle(load, waited)
        if waited >= limit_s:
            return Idle(load, waited, f"not idle after {waited:.0f} s: {load:.2f} cores busy with something else")


class Neighbours:
    """Cores that everything but our own child processes used, from the making of this object to `cores()`."""

    def __init__(self) -> None:
        self._start, self._ticks, self._own = time.monotonic(), read_ticks(), _child_seconds()

    def cores(self) -> float | None:
        """Counts a child only once it has been waited for, so ask when it has ended."""
        after = read_ticks()
        if self._ticks is None or after is None:
            return None
        busy = busy_cores(self._ticks, after, num_cores=os.cpu_count() or 1)
        own = (_child_seconds() - self._own) / max(time.monotonic() - self._start, 1e-9)
        return max(0.0, busy - own)


def adopt_orphans() -> None:
    """What children leave behind (daemons of a peer) becomes our child too, so that `Neighbours` counts it as theirs. Linux."""
    if platform.system() == "Linux":
        _adopting.append(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def reap_orphans(limit_s: float = 5.0) -> None:
    """Wait for what the last measurement left behind (if it was adopted); at its end its time is known."""
    if not _adopting:
        return
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        try:
            found, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not found:
            time.sleep(0.05)


def _child_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def facts() -> dict[str, Any]:
    """What a reader needs to judge a number: cores, processor, memory, accelerators, system."""
    return {
        "cores": os.cpu_count(),
        "cpu": _cpu_name(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": _gpu_names(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu_names() -> list[str]:
    """Names and memory of NVIDIA's devices, as their driver tells them."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True)
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def commit(root: Path) -> dict[str, Any]:
    """The commit that is measured, and whether files differ from it."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
