"""Sessions of the sandbox: interpreters with memory between calls, each confined as `run.py` confines one program.

What `run.py` promises holds for each session. Wall time and output are limited for each call; memory, files, threads and CPU
time for the whole session. Sessions have no common process, folder or user, and cannot see or signal each other.

The code runs in the process that answers. So it can forge what a call returns, which is the model's own text in any case; it
can confuse no other session, and cannot make this process wait or read without bound. Do not judge code by what its session
says: `run_python` with `checks` does that in processes of its own.

    with SessionPool() as pool, pool.take() as session:
        session.run("x = 20")
        assert session.run("print('y'); 2 * x + 2").value == "42"
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self, cast

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError, DataError
from runnel.core.process import exit_text
from runnel.llm.sandbox.interpreter import ENDED, Exchanged, Interpreter, Zygote, ZygoteLost, refuse
from runnel.llm.sandbox.run import SandboxConfig, confinement

SessionStatus = Literal["ok", "failed", "timeout", "output", "memory", "died"]
LONGEST_CODE = 1 << 20
"""Most characters of the code of one call."""
FDS = 5
"""Descriptors of this process that a session takes: a socket, three pipes, and its folder's lock."""
SPARE_FDS = 256
"""Descriptors that are left to the rest of this process."""
TRIES = 3


@dataclass(frozen=True)
class SessionConfig(SandboxConfig):
    """Limits of a session."""

    wall_s: float = bounded(4.0, above=0, at_most=3600)
    """Most seconds of a call. Then its code is interrupted. If it has not ended a second later, its interpreter is killed."""
    cpu_s: int = bounded(60, at_least=1)
    """Most seconds of CPU time of all calls of a session together. Then the session has ended."""
    memory_mb: int = bounded(512, at_least=32)
    """Most address space of a session."""
    file_mb: int = bounded(8, at_least=0)
    """Largest file that may be written."""
    scratch_mb: int = bounded(32, at_least=1)
    """Most that all files of a session together may take (where namespaces are available)."""
    threads: int = bounded(32, at_least=1)
    """Most threads (as in `SandboxConfig`)."""
    output_kb: int = bounded(64, at_least=1, at_most=4096)
    """Most that a call may print, and the longest text of a value. A call that prints more is interrupted."""
    preload: tuple[str, ...] = ()
    """Modules that are imported once, before any session starts; all sessions share their memory. They are imported unconfined,
    and what they have made by then (a generator of random numbers) is alike in all sessions."""


@dataclass(frozen=True)
class SessionResult:
    """What came of a call."""

    status: SessionStatus
    """`failed`: the code raised; `timeout`, `output` (it printed, or its value is, too much) and `memory`: a limit; `died`: the
    interpreter has ended."""
    stdout: str = ""
    """What was printed on both streams, in order."""
    value: str = ""
    """The `repr` of the value of the last statement, as a prompt shows it: if it is an expression, and its value not None."""
    error: str = ""
    """A short traceback, or in words what happened; empty where nothing did."""
    duration_s: float = 0.0
    lost_state: bool = False
    """All variables and files of earlier calls are gone. The next call starts in a new interpreter."""

    @property
    def text(self) -> str:
        """All of it as a prompt would show it."""
        return "\n".join(part.rstrip("\n") for part in (self.stdout, self.value, self.error) if part)


class SandboxSession:
    """One confined interpreter with memory between calls. Taken from a `SessionPool`; calls of several threads take turns.

    If the interpreter ends, or has to be killed, the call says so, and a new one takes its place at the next call: without the
    variables and files of the old one. That ends when the session has used its CPU time. Threads that the code has started run
    on between calls. What they print between two calls is dropped; what they print during a later call stands in that call's
    output, as in any interactive interpreter.
    """

    def __init__(self, pool: SessionPool, config: SessionConfig, interpreter: Interpreter) -> None:
        self._pool, self._config = pool, config
        self._interpreter: Interpreter | None = interpreter
        self.broken: dict[str, str] = interpreter.facts["broken"]
        """Promises that are not kept, with the reason."""
        self.protection: dict[str, str] = interpreter.facts["took"]
        """Each mechanism of the kernel, with "" if it took hold, else the reason."""
        self._cpu_s, self._closed = 0.0, False
        self._lock = threading.Lock()

    def run(self, code: str, *, timeout_s: float | None = None) -> SessionResult:
        """Run `code` with the names of earlier calls. `timeout_s` may shorten `SessionConfig.wall_s` for this call."""
        limit_s = self._config.wall_s if timeout_s is None else min(timeout_s, self._config.wall_s)
        if not limit_s > 0:
            raise DataError(f"the time of a call is {timeout_s} s; give more than 0, or None")
        with self._lock:
            if self._closed:
                raise DataError("this session is closed; take another from its pool")
            began = time.perf_counter()
            return replace(self._run(code, limit_s), duration_s=time.perf_counter() - began)

    def _run(self, code: str, limit_s: float) -> SessionResult:
        if len(code) > LONGEST_CODE:
            return SessionResult("failed", error=f"the code has {len(code)} characters, but at most {LONGEST_CODE} can be run")
        if self._left_s() <= 0:
            return SessionResult("died", error=self._used())
        if self._interpreter is None:
            self._interpreter = self._pool.start()
        if self._interpreter.has_ended():
            why = f"the interpreter {self._end()} since the last call; this code was not run. {self._lost()}"
            return SessionResult("died", error=why, lost_state=True)
        found = self._interpreter.exchange(code, limit_s, cpu_s=math.ceil(self._left_s()) if self._cpu_s else 0)
        return self._killed(found, limit_s) if found.answer is None else self._answered(found.answer, found.printed, limit_s)

    def _answered(self, answer: list[str], printed: str, limit_s: float) -> SessionResult:
        # the code can have forged all of it, within the bounds of `Exchanged`
        value, error = (_clean(text, self._config.output_kb << 10) for text in answer[1:])
        words = {"timeout": f"the call was interrupted after {limit_s:g} s", "output": self._printed_more()}
        return SessionResult(cast(SessionStatus, answer[0]), printed, value, error or words.get(answer[0], ""))

    def _printed_more(self) -> str:
        return f"the call was interrupted: it printed more than {self._config.output_kb} KB"

    def _killed(self, found: Exchanged, limit_s: float) -> SessionResult:
        """End an interpreter that has not answered; why it has not."""
        ended = self._end()
        words = {
            "timeout": f"the call took more than {limit_s:g} s and could not be interrupted; its interpreter was killed",
            "output": f"{self._printed_more()} and went on; its interpreter was killed",
            "died": f"the interpreter {ended}"
            if found.why == ENDED
            else f"the interpreter {found.why} in place of an answer, and was killed",
        }
        used = self._left_s() <= 0
        status: SessionStatus = "died" if used else found.end
        return SessionResult(status, found.printed, error=f"{words[found.end]}. {self._lost()}", lost_state=True)

    def _end(self) -> str:
        """End the interpreter and count its CPU time; returns how it ended, in words."""
        assert self._interpreter is not None, "there is one"
        facts = self._interpreter.end()
        self._interpreter = None
        self._cpu_s += facts.get("cpu_s", 0.0)
        if facts.get("exit") == -signal.SIGXCPU:  # the kernel's limit may count more time than its own report says
            self._cpu_s = float(self._config.cpu_s)
        return exit_text(facts["exit"]) if "exit" in facts else "ended"

    def _left_s(self) -> float:
        """CPU time that is left. The kernel counts to the next full second."""
        return max(0.0, self._config.cpu_s - self._cpu_s)

    def _lost(self) -> str:
        return "All variables and files are lost; " + ("the next call starts anew." if self._left_s() > 0 else self._used())

    def _used(self) -> str:
        return f"this session has used its {self._config.cpu_s} s of CPU time, and runs no more code"

    def close(self) -> None:
        """End the interpreter, and remove its folder. Waits for a call in progress. A second call changes nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                if self._interpreter is not None:
                    self._end()
                self._pool.put_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SessionPool:
    """Interpreters that are started ahead: `warm` wait for sessions, of which `most` may be open at a time.

    All are forked from one process that has never run any code of a model, started with the first session. They end with the
    process that made the pool, even if it is killed. `without` leaves mechanisms out, as in `run_python`.
    """

    def __init__(
        self, config: SessionConfig | None = None, *, warm: int = 2, most: int = 128, without: tuple[str, ...] = ()
    ) -> None:
        self._config = config or SessionConfig()
        check_bounds(self._config, "sandbox.")
        _check_pool(warm, most)
        self._warm, self._most, self._without, self._owner = warm, most, without, os.getpid()
        self._zygote: Zygote | None = None
        self._waiting: deque[Interpreter] = deque()
        self._sessions: set[SandboxSession] = set()
        self._num_open, self._closed = 0, False
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)

    def take(self, timeout_s: float | None = None) -> SandboxSession:
        """A new session. Waits while `most` are open; a `TimeoutError` after `timeout_s`."""
        with self._room:
            self._check_open()
            if not self._room.wait_for(lambda: self._num_open < self._most or self._closed, timeout_s):
                raise TimeoutError(f"{self._most} sessions were open for {timeout_s:g} s")
            self._check_open()
            self._num_open += 1
        try:
            session = SandboxSession(self, self._config, self.start())
        except BaseException:
            self.put_back(None)
            raise
        with self._room:
            self._sessions.add(session)
            closed = self._closed
        if closed:  # meanwhile
            session.close()
            raise DataError("this pool of sessions is closed")
        return session

    def put_back(self, session: SandboxSession | None) -> None:
        """Make room for another session, because this one has closed."""
        with self._room:
            if session is not None:
                self._sessions.discard(session)
            self._num_open -= 1
            self._room.notify()

    def check(self) -> None:
        """Raise a `ConfigError` if this machine cannot confine sessions. Only the first call takes time."""
        if self._zygote is None:
            interpreter = self.start()
            with self._lock:
                self._waiting.appendleft(interpreter)

    def start(self) -> Interpreter:
        """A confined interpreter that has run nothing yet, for a session."""
        why = ""
        for _ in range(TRIES):  # the kernel may have killed one while it waited, or what they are forked from
            try:
                with self._lock:
                    self._check_open()
                    interpreter, zygote = self._next()
            except ZygoteLost as error:
                why = str(error)
                continue
            if interpreter.wait_ready():
                if interpreter.facts["broken"] and not self._config.allow_weaker:
                    refuse(interpreter)
                if not interpreter.has_ended():
                    return interpreter
            why = zygote.why()
            interpreter.end()
        raise ConfigError("sandbox", "session", f"its process ended before it was confined: {why[-300:] or 'is memory short?'}")

    def _next(self) -> tuple[Interpreter, Zygote]:
        """The interpreter that has waited longest; another is started in its place."""
        if self._zygote is None or not self._zygote.alive():
            self._end_waiting()
            order = confinement(self._config, self._without)
            prefixes = [sys.base_prefix, sys.prefix]
            more = {"preload": list(self._config.preload), "most": self._config.output_kb << 10, "prefixes": prefixes}
            self._zygote = Zygote({**order, **more})
        try:
            while len(self._waiting) <= self._warm:
                self._waiting.append(Interpreter(self._zygote, output_kb=self._config.output_kb))
        except ZygoteLost:
            self._end_waiting()
            raise
        return self._waiting.popleft(), self._zygote

    def _end_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().end()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _check_open(self) -> None:
        if os.getpid() != self._owner:
            raise DataError("this pool of sessions belongs to another process; make one here")
        if self._closed:
            raise DataError("this pool of sessions is closed")

    def close(self) -> None:
        """End all sessions. A second call changes nothing."""
        if os.getpid() != self._owner:  # a fork has no business with what its parent has started
            return
        with self._room:
            self._closed = True
            self._room.notify_all()
            sessions = list(self._sessions)
        for session in sessions:
            session.close()
        with self._lock:
            self._end_waiting()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _check_pool(warm: int, most: int) -> None:
    if sys.platform != "linux":
        raise ConfigError("sandbox", sys.platform, "generated code is confined by the Linux kernel; run this on Linux")
    if warm < 0 or most < 1:
        raise ConfigError("warm, most", (warm, most), "must be at least 0 and at least 1")
    if most > (room := most_sessions(warm)):
        _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        fix = f"this process may have {limit} open files: enough for {room} sessions. Lower it, or raise `ulimit -Hn`"
        raise ConfigError("most", most, fix)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = SPARE_FDS + FDS * (warm + most)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def most_sessions(warm: int) -> int:
    """How many sessions this process has descriptors for, beside those that wait."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if hard == resource.RLIM_INFINITY else (hard - SPARE_FDS) // FDS - warm


def _clean(text: str, most: int) -> str:
    """Text that can be encoded, of at most `most` characters."""
    return text[:most].encode(errors="replace").decode()
