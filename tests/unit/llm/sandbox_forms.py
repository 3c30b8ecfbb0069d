"""Both forms of the sandbox behind one call, so that every attack is tried on both: a program of its own, and a session."""

from __future__ import annotations

import atexit
import os
import time
from functools import cache
from pathlib import Path

from runnel.llm.sandbox.run import SandboxConfig, SandboxResult, run_python
from runnel.llm.sandbox.session import SandboxSession, SessionConfig, SessionPool

LIMITS = SessionConfig(wall_s=20.0, cpu_s=20, memory_mb=256, file_mb=1, scratch_mb=4, output_kb=4)
FEW_S = 0.3
"""The time of calls that are meant to run out of it."""
FORMS = ("program", "session")
SHARED = ("cpu_s", "memory_mb", "file_mb", "scratch_mb", "threads", "output_kb", "packages", "allow_weaker", "wall_s")


@cache
def pool_of(limits: SessionConfig, without: tuple[str, ...]) -> SessionPool:
    """A pool that keeps no interpreter waiting, so that nothing of a sandbox runs between two tests."""
    pool = SessionPool(limits, warm=0, without=without)
    atexit.register(pool.close)
    return pool


def run(form: str, code: str, *, config: SandboxConfig, without: tuple[str, ...] = ()) -> SandboxResult:
    """Run code in one form of the sandbox. A session answers to one call, what it says of an error stands in `stderr`."""
    if form == "program":
        return run_python(code, config=config, without=without)
    limits = SessionConfig(**{name: getattr(config, name) for name in SHARED})
    with pool_of(limits, without).take() as session:
        found = session.run(code)
    status = "failed" if found.status == "died" else found.status
    return SandboxResult(
        status, int(found.status != "ok"), found.stdout, found.error, found.duration_s,
        broken=session.broken, protection=session.protection,
    )  # fmt: skip


def processes_of(session: SandboxSession) -> list[int]:
    """The processes that hold the pipe of a session's output."""
    pipe = os.readlink(f"/proc/self/fd/{session._interpreter._fds[2]}")
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            continue
        if pipe in fds and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def all_end(pids: list[int]) -> bool:
    """Whether all these processes end. One that has closed its files may not have ended yet, so this waits a little."""
    deadline = time.monotonic() + 30.0
    while any(map(runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(runs, pids))


def runs(pid: int) -> bool:
    """Whether a process runs; one that has ended and is only not forgotten does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
