"""The sandbox: runs a model's Python in a process of its own that can neither harm nor see its surroundings.

It keeps these promises, or refuses to run: limits on time, CPU, memory, size of files and output; no other processes, no
network, none of the parent's environment variables, no reading except of Python's own files, no change to any file outside
(content, name, mode, owner, times, attributes), only system calls that ordinary programs need, a folder that is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import py_compile
import selectors
import signal
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from runnel.core.errors import ConfigError
from runnel.core.process import ChildProgram
from runnel.core.readable import readable
from runnel.core.state import State
from runnel.llm.sandbox import calls
from runnel.llm.sandbox.folder import sandbox_folder

Status = Literal["ok", "failed", "timeout", "output", "memory"]
PROGRAM = """import os, sys
from _frozen_importlib_external import SourcelessFileLoader
for part in sys.argv[1].split(","):
    name, _, fd = part.partition("=")
    sys.modules[name] = type(sys)(name)
    exec(SourcelessFileLoader(name, "/proc/self/fd/" + fd).get_code(name), sys.modules[name].__dict__)
    os.close(int(fd))
sys.modules[name].main(*map(int, sys.argv[2:]))"""
"""The child's first lines: they load modules, and call `main` of the last one. The modules are compiled already: compiling them
would take half of the start."""
PYTHON = (sys.executable, "-s", "-P", "-S", "-B", "-c")
"""Not `-I`: it would ignore `ENVIRONMENT`, and so hash texts differently in each run."""
ALONE = ("confine", "mounts", "child")
TESTED = ("confine", "mounts", "plain", "remote", "link", "check", "child")
"""Modules of the child, each after those that it imports."""
START_S = 20.0
"""The most seconds from the start of the process to its first report."""
GONE_S = 2.0
"""The most seconds to wait for its end after it was killed."""
FLOOD = 1 << 26
"""A program is stopped when so many bytes of its output have been dropped."""
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class SandboxConfig:
    """Limits of one run."""

    wall_s: float = 5.0
    """Most seconds from start to end."""
    cpu_s: int = 5
    """Most seconds of CPU time."""
    memory_mb: int = 512
    """Most address space."""
    file_mb: int = 8
    """Largest file that may be written."""
    scratch_mb: int = 32
    """Most that all files together may take (where namespaces are available)."""
    threads: int = 32
    """Most threads (not enforced by the kernel where root cannot run the code as another user: memory bounds them there)."""
    output_kb: int = 64
    """Most that is kept of stdout, and of stderr. A program that prints more on stdout is stopped; with checks, which do not
    look at output, the rest is dropped."""
    packages: bool = False
    """Let the code import installed packages, not the standard library alone."""
    allow_weaker: bool = False
    """Run even if a promise cannot be kept; `SandboxResult.broken` says which."""


@dataclass(frozen=True)
class SandboxResult:
    """How a run ended. `checks` has one verdict for each check (all are False if none ran)."""

    status: Status
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    checks: tuple[bool, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why a check does not hold ("" if it does): an error, or how the code prevented the test from ending."""
    broken: dict[str, str] = field(default_factory=dict)
    """Promises that were not kept, with the reason."""
    protection: dict[str, str] = field(default_factory=dict)
    """Each mechanism of the kernel, with "" if it took hold, else the reason."""


def run_python(
    code: str,
    *,
    stdin: str = "",
    checks: tuple[str, ...] = (),
    config: SandboxConfig | None = None,
    without: tuple[str, ...] = (),
) -> SandboxResult:
    """Run `code` as a program; or, with `checks` (statements that raise if they fail), as a module whose names they may use.

    Checks run in a process of their own, which gets only plain data from the code and compares it. Raises a `ConfigError` if a
    promise cannot be kept. `without` leaves mechanisms out, to test whether the others suffice.
    """
    c = config or SandboxConfig()
    if sys.platform != "linux":
        raise ConfigError("sandbox", sys.platform, "generated code is confined by the Linux kernel; run this on Linux")
    with sandbox_folder() as folder:
        watch = _Watch(_order(code, stdin, bool(checks), c, without, folder), checks, c, folder)
        try:
            return _result(watch.wait(), watch, c, len(checks))
        finally:
            watch.kill()


def protection() -> dict[str, str]:
    """The mechanisms that confine generated code on this machine, each with "" or the reason why it is not available."""
    return run_python("", config=SandboxConfig(allow_weaker=True)).protection


def _order(code: str, stdin: str, tested: bool, c: SandboxConfig, without: tuple[str, ...], folder: str) -> State:
    return {**confinement(c, without), "code": code, "stdin": stdin, "tested": tested, "folder": folder}


def confinement(c: SandboxConfig, without: tuple[str, ...]) -> State:
    """What a child must know to confine itself, except its folder."""
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    path = [*dict.fromkeys(library), str(Path(library[0]) / "lib-dynload")]
    packages = [p for p in sys.path if p.endswith("site-packages")] if c.packages else []
    path += packages
    probe = [*path, *(entry.path for p in packages if os.path.isdir(p) for entry in os.scandir(p))]
    return {
        "parent": os.getpid(),
        "path": path,
        "probe": probe,
        "readable": [*path, *SYSTEM, *DEVICES, str(Path(sys.base_prefix) / "lib")],
        "writable": ["/dev/null"],
        "scratch_mb": c.scratch_mb,
        "filters": _filters(),
        "strict": not c.allow_weaker,
        "without": list(without),
        "limits": {"cpu_s": c.cpu_s, "memory_mb": c.memory_mb, "file_mb": c.file_mb, "threads": c.threads},
    }


@lru_cache(maxsize=1)
def _filters() -> dict[str, str]:
    """The filters of system calls, with and without changes of modes and times of files; empty on an unknown machine."""
    machine = os.uname().machine
    known = machine in calls.MACHINES and sys.maxsize > 1 << 32  # a Python of 32 bits makes other calls
    return {name: calls.program(marks=name == "marks", machine=machine).hex() if known else "" for name in ("plain", "marks")}


class _Watch:
    """A running sandbox: its process, and its output so far."""

    def __init__(self, order: State, checks: tuple[str, ...], config: SandboxConfig, folder: str) -> None:
        self._config, self._drop = config, bool(checks)
        parts = {name: compiled(name) for name in (TESTED if checks else ALONE)}
        asked, tests = held(order), held(list(checks))
        self._status, said = os.pipe()
        self._alive, living = os.pipe()
        self._stdout, stdout = os.pipe()
        self._stderr, stderr = os.pipe()
        told = (asked, said, tests, living)
        modules = ",".join(f"{name}={fd}" for name, fd in parts.items())
        self.process = ChildProgram(
            [*PYTHON, PROGRAM, modules, *map(str, told)],
            pass_fds=(*parts.values(), *told),
            env={**ENVIRONMENT, "HOME": folder, "TMPDIR": folder},
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            new_session=True,
        )
        for fd in (*told, stdout, stderr):
            os.close(fd)
        self.said: dict[int, bytearray] = {fd: bytearray() for fd in self._fds()}
        self._dropped = 0
        self.began = time.perf_counter()

    def _fds(self) -> tuple[int, int, int]:
        return self._status, self._stdout, self._stderr

    def wait(self) -> Status | None:
        """Read output until the sandbox ends; returns a status if it must be stopped."""
        deadline, started = self.began + START_S, False
        selector = selectors.DefaultSelector()
        for fd in self.said:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.perf_counter()
            if left <= 0:
                return "timeout"
            for key, _ in selector.select(left):
                if not self._take(key.fd):
                    selector.unregister(key.fd)
            if not started and self.said[self._status]:
                started, self.began = True, time.perf_counter()
                deadline = self.began + self._config.wall_s
            if self._too_much():
                return "output"
        return None

    def _take(self, fd: int) -> bool:
        """Read available output, and keep what there is room for; False at the end of the output."""
        data = os.read(fd, 1 << 16)
        room = (1 << 20 if fd == self._status else self._config.output_kb << 10) + 1 - len(self.said[fd])
        self.said[fd] += data[: max(room, 0)]
        self._dropped += max(len(data) - max(room, 0), 0)
        return bool(data)

    def _too_much(self) -> bool:
        status, stdout, _ = (len(self.said[fd]) for fd in self._fds())
        printed = stdout > self._config.output_kb << 10 and not self._drop
        return printed or status > 1 << 20 or self._dropped > FLOOD

    def facts(self) -> list[State]:
        """What the child reported on its status pipe, which is closed before the code runs."""
        lines = bytes(self.said[self._status]).splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]  # a child that was killed may leave half a line

    def text(self, index: int) -> str:
        limit = self._config.output_kb << 10
        return bytes(self.said[self._fds()[index]][:limit]).decode(errors="replace")

    def _wait_for_all(self) -> None:
        """Wait until the last process has closed the pipe: then no process of the sandbox runs any more."""
        while readable([self._alive], GONE_S) and os.read(self._alive, 1 << 16):
            pass

    def kill(self) -> None:
        """Kill all processes of the sandbox. A second call changes nothing."""
        self.process.end()
        if self._status >= 0:
            self._wait_for_all()
            for fd in (*self._fds(), self._alive):
                os.close(fd)
            self._status = -1


@lru_cache(maxsize=8)
def compiled(name: str) -> int:
    """A module of the child, compiled, in a file in memory that all children of this process read."""
    with sandbox_folder() as folder:
        made = py_compile.compile(
            str(Path(__file__).with_name(f"{name}.py")), f"{folder}/{name}.pyc", f"{name}.py", doraise=True
        )
        data = Path(str(made)).read_bytes()
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    _write_all(fd, data)
    # sealed, so that no child can change it: it would change the code of later children
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return fd


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def held(value: object) -> int:
    """A Python literal of `value` in a file in memory, to be read from its start."""
    fd = os.memfd_create("order")
    _write_all(fd, repr(value).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _result(forced: Status | None, watch: _Watch, c: SandboxConfig, num_checks: int) -> SandboxResult:
    facts, stdout, stderr = watch.facts(), watch.text(1), watch.text(2)
    first = next((f for f in facts if "took" in f), None)
    if first is None and forced is None:
        raise ConfigError("sandbox", watch.process.end(GONE_S), f"its process ended before the code started: {stderr[-300:]}")
    broken = {} if first is None else dict(first["broken"])
    if broken and not c.allow_weaker:
        lines = "; ".join(f"{promise} ({reason})" for promise, reason in broken.items())
        fix = f"this machine cannot keep its promises: {lines}. Use another machine, or allow_weaker=True for code you trust"
        raise ConfigError("sandbox", sorted(broken), fix)
    code = next((f["exit"] for f in facts if "exit" in f), -int(signal.SIGKILL))
    status: Status = forced or ("ok" if code == 0 else "memory" if _out_of_memory(stderr) else "failed")
    checks, reasons = _verdicts(facts, forced, num_checks)
    seconds = time.perf_counter() - watch.began
    return SandboxResult(status, code, stdout, stderr, seconds, checks, reasons, broken, dict(first["took"]) if first else {})


def _verdicts(facts: list[State], forced: Status | None, num_checks: int) -> tuple[tuple[bool, ...], tuple[str, ...]]:
    """The verdict of the tests' process on each check. If it reported none, or the sandbox was stopped, no check holds."""
    told = next((f for f in facts if "checks" in f), None)
    if told is None or forced is not None:
        return (False,) * num_checks, (forced or "the tests' process ended",) * num_checks
    return tuple(told["checks"]), tuple(told["reasons"])


def _out_of_memory(stderr: str) -> bool:
    lines = stderr.strip().splitlines()
    return bool(lines) and lines[-1].startswith("MemoryError")
