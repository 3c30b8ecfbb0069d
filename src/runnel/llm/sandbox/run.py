"""The sandbox: runs a model's Python in a process of its own that can neither harm nor see its surroundings.

What is promised, and refused to run without: bounds on time, CPU, memory, size of files and output; no processes, no
network, none of the parent's environment variables, no reading outside of Python's own files, a folder that is removed.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import selectors
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runnel.core.errors import ConfigError

Status = Literal["ok", "failed", "timeout", "output", "memory"]
SCRIPT = Path(__file__).with_name("child.py")
START_S = 20.0
"""Longest start."""
GONE_S = 2.0
"""Longest end, once it is killed."""
SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class SandboxConfig:
    """Limits of one run."""

    wall_s: float = 5.0
    """Most seconds from start to end."""
    cpu_s: int = 5
    """Most seconds of computing."""
    memory_mb: int = 512
    """Most address space."""
    file_mb: int = 8
    """Largest file that may be written."""
    scratch_mb: int = 32
    """Most that all files may take together (where namespaces are available)."""
    threads: int = 32
    """Most threads (not enforced by the kernel for root, whose threads are bounded by memory)."""
    output_kb: int = 64
    """Most output on stdout and stderr together; a program that prints more is stopped."""
    packages: bool = False
    """Let the code import installed packages, not the standard library alone."""
    allow_weaker: bool = False
    """Run even where a promise cannot be kept; `SandboxResult.broken` says which."""


@dataclass(frozen=True)
class SandboxResult:
    """How a run ended. `checks` has one verdict for each check that was asked for (none ran: all False)."""

    status: Status
    exit_code: int
    stdout: str
    stderr: str
    seconds: float
    checks: tuple[bool, ...] = ()
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
    """Run `code`, then each of `checks` (statements that raise if they fail) in its names.

    Raises a `ConfigError` where a promise cannot be kept. `without` leaves mechanisms out, to try how the others hold.
    """
    c = config or SandboxConfig()
    if sys.platform != "linux":
        raise ConfigError("sandbox", sys.platform, "generated code is confined by the Linux kernel; run this on Linux")
    with tempfile.TemporaryDirectory(prefix="runnel-sandbox-", ignore_cleanup_errors=True) as folder:
        nonce = secrets.token_hex(16)
        order = _order(code, stdin, checks, c, without, folder) | {"nonce": nonce}
        watch = _Watch(order, c, folder)
        try:
            return _result(watch.wait(), watch, c, checks, nonce)
        finally:
            watch.kill()


def protection() -> dict[str, str]:
    """What confines generated code on this machine: each mechanism with "" or the reason why it is not available."""
    return run_python("", config=SandboxConfig(allow_weaker=True)).protection


def _order(
    code: str, stdin: str, checks: tuple[str, ...], c: SandboxConfig, without: tuple[str, ...], folder: str
) -> dict[str, Any]:
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    path = [*dict.fromkeys(library), str(Path(library[0]) / "lib-dynload")]
    if c.packages:
        path += [p for p in sys.path if p.endswith("site-packages")]
    return {
        "code": code,
        "stdin": stdin,
        "checks": list(checks),
        "folder": folder,
        "path": path,
        "readable": [*path, *SYSTEM, *DEVICES, str(Path(sys.base_prefix) / "lib")],
        "scratch_mb": c.scratch_mb,
        "strict": not c.allow_weaker,
        "without": list(without),
        "limits": {"cpu_s": c.cpu_s, "memory_mb": c.memory_mb, "file_mb": c.file_mb, "threads": c.threads},
    }


class _Watch:
    """A running sandbox: its process, and what it has said so far."""

    def __init__(self, order: dict[str, Any], config: SandboxConfig, folder: str) -> None:
        self._config = config
        asked = os.memfd_create("order")
        _write_all(asked, repr(order).encode())
        os.lseek(asked, 0, os.SEEK_SET)
        self._status, said = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(SCRIPT), str(asked), str(said)],
            pass_fds=(asked, said),
            env={**ENVIRONMENT, "HOME": folder, "TMPDIR": folder},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(asked)
        os.close(said)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.said: dict[int, bytearray] = {fd: bytearray() for fd in self._fds()}
        self.began = time.perf_counter()

    def _fds(self) -> tuple[int, int, int]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return self._status, self.process.stdout.fileno(), self.process.stderr.fileno()

    def wait(self) -> Status | None:
        """Read until the end; a status where that had to be forced."""
        deadline, started = self.began + START_S, False
        selector = selectors.DefaultSelector()
        for fd in self.said:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.perf_counter()
            if left <= 0:
                return "timeout"
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                self.said[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if not started and self.said[self._status]:
                started, self.began = True, time.perf_counter()
                deadline = self.began + self._config.wall_s
            if sum(len(self.said[fd]) for fd in self._fds()[1:]) > self._config.output_kb << 10:
                return "output"
            if len(self.said[self._status]) > 1 << 20:
                return "output"
        return None

    def facts(self) -> list[dict[str, Any]]:
        """What the child told on its status line; noise that the code may have written there is left out."""
        found = []
        for line in bytes(self.said[self._status]).splitlines():
            try:
                fact = json.loads(line)
            except ValueError:
                continue
            found += [fact] if isinstance(fact, dict) else []
        return found

    def text(self, index: int) -> str:
        limit = self._config.output_kb << 10
        return bytes(self.said[self._fds()[index]][:limit]).decode(errors="replace")

    def _wait_for_all(self) -> None:
        """Until the last process has closed its end: then nothing of the sandbox runs any more."""
        while select.select([self._status], [], [], GONE_S)[0] and os.read(self._status, 1 << 16):
            pass

    def kill(self) -> None:
        """End whatever is left; its namespace goes with it."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        if self._status >= 0:
            self._wait_for_all()
            os.close(self._status)
            self._status = -1
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _result(forced: Status | None, watch: _Watch, c: SandboxConfig, checks: tuple[str, ...], nonce: str) -> SandboxResult:
    facts, stdout, stderr = watch.facts(), watch.text(1), watch.text(2)
    first = next((f for f in facts if "took" in f), None)
    if first is None and forced is None:
        raise ConfigError("sandbox", watch.process.wait(), f"its process ended before the code started: {stderr[-300:]}")
    broken = {} if first is None else dict(first["broken"])
    if broken and not c.allow_weaker:
        lines = "; ".join(f"{promise} ({reason})" for promise, reason in broken.items())
        fix = f"this machine cannot keep its promises: {lines}. Use another machine, or allow_weaker=True for code you trust"
        raise ConfigError("sandbox", sorted(broken), fix)
    exits = [f["exit"] for f in facts if isinstance(f.get("exit"), int)]  # pid 1 speaks last; the code may write there too
    code = exits[-1] if exits else -int(signal.SIGKILL)
    status: Status = forced or ("ok" if code == 0 else "memory" if _out_of_memory(stderr) else "failed")
    passed = next((f["checks"] for f in facts if f.get("nonce") == nonce and "checks" in f), [False] * len(checks))
    good = tuple(bool(p) and forced is None for p in passed)
    seconds = time.perf_counter() - watch.began
    return SandboxResult(status, code, stdout, stderr, seconds, good, broken, dict(first["took"]) if first else {})


def _out_of_memory(stderr: str) -> bool:
    lines = stderr.strip().splitlines()
    return bool(lines) and lines[-1].startswith("MemoryError")
