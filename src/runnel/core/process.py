"""Child processes: how they are started, how they end with their parent, and what is told of their end.

This file imports only the standard library: programs that run without the package load it by its path.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import IO

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
FIRST_LOOK_S, LOOK_S = 0.001, 0.05
"""Time between two looks whether a child has ended: it grows from the first to the second."""
LAST_BYTES = 2000


class ChildProcess:
    """A child of this process. `code` is its exit code as in `subprocess`, None while it is not known to have ended."""

    def __init__(self, pid: int, *, leads_session: bool = False) -> None:
        self.pid, self._leads_session = pid, leads_session
        self.code: int | None = None

    def _reap(self, *, wait: bool) -> int | None:
        """The exit code, once the child has ended. Afterwards its id may be another process's."""
        found, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None

    def ended(self) -> bool:
        """Whether the child has ended."""
        if self.code is None:
            self.code = self._reap(wait=False)
        return self.code is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait until the child has ended, at most `timeout_s`; returns whether it has."""
        deadline, pause_s = time.monotonic() + timeout_s, FIRST_LOOK_S
        while not self.ended() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause_s, left))
            pause_s = min(2 * pause_s, LOOK_S)
        return self.code is not None

    def signal(self, number: int) -> None:
        """Send a signal to the child, and to its whole session if it leads one; nothing happens if it has ended."""
        if self.code is None:
            with suppress(ProcessLookupError):
                (os.killpg if self._leads_session else os.kill)(self.pid, number)

    def end(self, timeout_s: float = 0.0) -> int:
        """Give the child `timeout_s` to end by itself, then kill it; returns its exit code. A second call changes nothing."""
        if self.code is None and not (timeout_s > 0 and self.wait(timeout_s)):
            # The exit code is asked for after the signal. Until then the id belongs to the child, even if it has ended, and
            # what it has started in its session is killed in any case.
            self.signal(signal.SIGKILL)
            self.code = self._reap(wait=True)
        assert self.code is not None, "it was waited for"
        return self.code

    def how(self) -> str:
        """How the child has ended, in words."""
        return exit_text(self.code)


class ChildProgram(ChildProcess):
    """A program, started as a child with no input. With `new_session` it leads a session: signals go to all that it starts, and
    Ctrl-C in the terminal does not reach it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        pass_fds: Collection[int] = (),
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        cwd: str | None = None,
        new_session: bool = False,
    ) -> None:
        self._popen = subprocess.Popen(
            command,
            env=env,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=new_session,
        )
        super().__init__(self._popen.pid, leads_session=new_session)

    def _reap(self, *, wait: bool) -> int | None:
        return self._popen.wait() if wait else self._popen.poll()


def fork(live: Callable[[], object]) -> ChildProcess:
    """Fork a child that calls `live` and exits, with code 0, or 1 and a traceback if that raises. It dies with this process."""
    parent = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the child would write once more what is in the buffers
    pid = os.fork()
    if pid:
        return ChildProcess(pid)
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
        leave_sigterm_to_the_run()
        die_with_parent(parent)
        live()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:  # whatever happened, the child must never return into the code of its parent
        sys.stderr.flush()
        os._exit(code)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the process `parent` ends (Linux; elsewhere its closed socket or pipe must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before the kernel was asked, so no signal will come
        os._exit(1)


def show_name(name: str) -> None:
    """Have `ps` and `top` show `name` for this process (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def leave_sigterm_to_the_run() -> None:
    """Ignore SIGTERM in this process of a run: `timeout`, systemd and schedulers send it to all processes at once.

    The process that a person started ends the run with a checkpoint, and this process with it. Programs that are started from
    here, and forks that are not ours, still die of the signal.
    """
    own = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own:  # a fork that is not ours
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)  # not SIG_IGN: programs that are started from here would inherit that


def exit_text(code: int | None) -> str:
    """How a process ended, in words, by its exit code as in `subprocess`.

    >>> exit_text(3), exit_text(-11), exit_text(None)
    ('exited with code 3', 'was killed by signal SIGSEGV', 'has not ended')
    """
    if code is None:
        return "has not ended"
    if code >= 0:
        return f"exited with code {code}"
    known = {s.value: s.name for s in signal.Signals}  # real-time signals between the first and the last have no name
    return f"was killed by signal {known.get(-code, str(-code))}"


def last_text(file: IO[bytes], limit: int = LAST_BYTES) -> str:
    """The last `limit` bytes of a file as text: what a process has written to it at last. The file's position stays."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), limit, max(0, size - limit)).decode(errors="replace")
