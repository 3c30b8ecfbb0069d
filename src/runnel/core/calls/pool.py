"""Calls of user code with deadlines, retries and reasons. The pool knows nothing of what the functions are for.

A `CallPool` keeps the queue, the tries and the order of outcomes. An `Executor` runs the tries of one function: in the caller's
thread, in other threads, as coroutines (`coroutines.py`) or in worker processes (`processes.py`). A failure is an outcome with
a reason, and never a value. The caller polls; nothing waits for user code longer than it asks for, except inline calls.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Literal, get_args

from runnel.core.clock import Clock, WallClock
from runnel.core.errors import ConfigError, RunnelError
from runnel.core.readable import Readable, readable
from runnel.core.resolve import load_object, reference
from runnel.core.user_code import lines_of, summary

Run = Literal["auto", "inline", "thread", "process", "async"]
Args = tuple[tuple[object, ...], Mapping[str, object]]
"""Positional and named arguments of a call."""
ANY = (BaseException,)
"""What user code may raise: it may run a model's code, which exits, and a panic in a library written in Rust is no `Exception`.
It is counted, and the run goes on."""
NUM_COROUTINES = 64
"""Coroutines at once, where `workers` does not say it."""
PAUSE_S, NUM_DOUBLINGS = 0.5, 4
"""Time before the second try of a call; it doubles so often, with each try."""
STEP_S = 0.05
"""Longest wait between two looks at the clock."""


# ------------------------------------------------------------------------------------------------------- what is called
@dataclass(frozen=True)
class CallSpec:
    """A function that a `CallPool` calls, and how.

    >>> CallSpec("tools.double", lambda x: 2 * x).resolved().run
    'thread'
    """

    name: str
    """The name for `CallPool.submit`, and in errors that name a field: `tools.double`."""
    fn: Callable[..., Any] | str
    """The function, or `module:function` or `file.py:function`. It may be an `async def`."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Named arguments that are the same in every call; an argument of the call replaces one of the same name."""
    run: Run = "auto"
    """process: can be stopped whatever it does; needs a function with a name, and arguments that JSON can hold. async: for an
    `async def`; many at once in one thread, cancelled after its time. thread: abandoned after its time, but not stopped.
    inline: no limit. auto: process for names, async for `async def` functions, thread for other functions."""
    workers: int = 0
    """Calls at once; 0 is 64 for async, else 1."""
    timeout_s: float = 30.0
    """Most seconds of a try. With its retries and the pauses before them, a call ends in any case."""
    retries: int = 0
    """Tries after the first one, if that raised, took too long or lost its process. Errors of runnel (`DataError`, ...) are not
    tried again: they say that the input is wrong."""
    limit_field: str = ""
    """The setting that a timeout names; empty: `NAME.timeout_s`."""

    def __post_init__(self) -> None:
        if self.run not in get_args(Run):
            raise ConfigError(f"{self.name}.run", self.run, f"use one of {', '.join(get_args(Run))}")
        for setting in ("workers", "retries"):
            if (count := getattr(self, setting)) < 0:
                raise ConfigError(f"{self.name}.{setting}", count, "use 0 or more")
        if not self.timeout_s > 0:
            raise ConfigError(f"{self.name}.timeout_s", self.timeout_s, "use more than 0 seconds")

    @property
    def target(self) -> str:
        """The name by which another process loads the function; a `ConfigError` where there is none."""
        name = self.fn if isinstance(self.fn, str) else reference(self.fn)
        if name is None:
            fix = "a lambda or local function cannot cross to a worker process; put it in a file, or use run='thread'"
            raise ConfigError(self.name, self.fn, fix)
        return name

    def resolved(self) -> CallSpec:
        """A copy with `run` and `workers` filled in; a `ConfigError` if the function cannot run that way."""
        run = self.run
        if run == "auto":
            run = "process" if isinstance(self.fn, str) else "async" if inspect.iscoroutinefunction(self.fn) else "thread"
        if run == "process":
            self.target  # noqa: B018  (raises if it has no name)
            try:
                json.dumps(dict(self.options))
            except (TypeError, ValueError) as error:
                fix = f"{error}; give plain data (numbers, strings, lists, dicts), or use run='thread'"
                raise ConfigError(f"{self.name}.options", self.options, fix) from error
        if run == "async" and not inspect.iscoroutinefunction(self.loaded()):
            raise ConfigError(f"{self.name}.run", run, "the function is no `async def`; make it one, or use run='thread'")
        return replace(self, run=run, workers=self.workers or (NUM_COROUTINES if run == "async" else 1))

    def loaded(self) -> Callable[..., Any]:
        """The function itself."""
        fn: Callable[..., Any] = load_object(self.fn, self.name) if isinstance(self.fn, str) else self.fn
        return fn

    def function(self) -> Callable[..., Any]:
        """The function with its options."""
        return partial(self.loaded(), **self.options)


@dataclass(frozen=True)
class CallOutcome:
    """What came of a call: its value, or the reason why there is none, with the lines of user code that raised."""

    value: Any = None
    reason: str = ""
    """Empty if the call succeeded."""
    lines: str = ""
    transient: bool = False
    """Whether another try may succeed."""
    ticket: int = -1
    duration_s: float = 0.0
    """What the last try took, without the time before it was begun and that until somebody asked for its outcome."""
    retried: tuple[str, ...] = ()
    """The reasons of earlier tries."""


def failed(error: BaseException, called: object) -> CallOutcome:
    """The outcome of a try that raised; `called` is the user's function."""
    return CallOutcome(reason=summary(error), lines=lines_of(error, called), transient=not isinstance(error, RunnelError))


def call(fn: Callable[..., Any], args: Sequence[object], named: Mapping[str, object]) -> Any:
    """Call a function, sync or async, and return its value."""
    answer = fn(*args, **named)
    return asyncio.run(_wait_for(answer)) if inspect.isawaitable(answer) else answer


async def _wait_for(answer: Any) -> Any:
    return await answer


def attempt(fn: Callable[..., Any], args: Args, called: object) -> CallOutcome:
    """One try in this thread. In the main thread a person may have pressed a key: that is no failure of the call."""
    try:
        return CallOutcome(call(fn, *args))
    except ANY as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise
        return failed(error, called)


# ------------------------------------------------------------------------------------------------------- where it runs
class Bell:
    """Wakes whoever waits for it: threads of this process ring."""

    def __init__(self) -> None:
        self._hears, self._rings = socket.socketpair()
        for end in (self._hears, self._rings):
            end.setblocking(False)

    def fileno(self) -> int:
        return self._hears.fileno()

    def ring(self) -> None:
        with suppress(BlockingIOError):  # full: it has rung already
            self._rings.send(b"!")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            self._hears.recv(4096)

    def close(self) -> None:
        self._hears.close()
        self._rings.close()


class Executor(ABC):
    """Runs the tries of one function. A try has a number, and never the number of an earlier one."""

    def __init__(self, spec: CallSpec, clock: Clock) -> None:
        self.spec, self._clock = spec, clock
        self._began: dict[int, float] = {}
        """When each running try began."""
        self._found: dict[int, CallOutcome] = {}
        self._lock = threading.RLock()
        """For the two above, where threads of an executor change them too."""
        self._bell: Bell | None = None
        """Those threads ring it."""

    def start(self) -> None:
        """Start what takes time, before the first call."""

    def room(self, waiting: int) -> int:
        """How many of the `waiting` calls may begin now."""
        return self.spec.workers - len(self._began)

    @abstractmethod
    def begin(self, number: int, args: Args) -> None: ...

    def poll(self) -> dict[int, CallOutcome]:
        """Outcomes since the last call. Tries that have taken too long are stopped."""
        with self._lock:
            now = self._clock.now()
            late = {n: now - began for n, began in self._began.items() if now - began >= self.spec.timeout_s}
            for number in late:
                del self._began[number]
            if self._found and self._bell is not None:
                self._bell.clear()
            found, self._found = self._found, {}
        limit = self.spec.limit_field or f"{self.spec.name}.timeout_s"
        for number, took in late.items():
            self._stop(number)
            reason = f"timeout after {self.spec.timeout_s:g} s ({limit})"
            found[number] = CallOutcome(reason=reason, transient=True, duration_s=took)
        return found

    def wakes(self) -> Sequence[Readable]:
        """What becomes readable when a try has ended."""
        return () if self._bell is None else (self._bell,)

    def close(self) -> None:
        """Release threads and processes; running tries are given up."""
        with self._lock:
            self._began, self._found = {}, {}
            if self._bell is not None:
                self._bell.close()
            self._bell = None

    def _begin(self, number: int) -> None:
        """Note that a try begins now."""
        with self._lock:
            self._began[number] = self._clock.now()

    def _finish(self, number: int, outcome: CallOutcome) -> bool:
        """Keep the outcome of a try; False if the try was given up before."""
        with self._lock:
            if (began := self._began.pop(number, None)) is None:
                return False
            self._found[number] = replace(outcome, duration_s=self._clock.now() - began)
            if self._bell is not None:
                self._bell.ring()
            return True

    def _stop(self, number: int) -> None:
        """End a try that was given up, where that is possible."""


class InlineExecutor(Executor):
    """Runs a call inside `submit`: the cheapest way for a function that is fast and cannot hang."""

    def __init__(self, spec: CallSpec, clock: Clock) -> None:
        super().__init__(spec, clock)
        self._fn = spec.function()

    def room(self, waiting: int) -> int:
        return waiting

    def begin(self, number: int, args: Args) -> None:
        began = self._clock.now()
        outcome = attempt(self._fn, args, self.spec.fn)
        self._found[number] = replace(outcome, duration_s=self._clock.now() - began)


class ThreadExecutor(Executor):
    """Runs calls in `workers` threads. A call that exceeds its time is abandoned: its thread cannot be stopped, so another
    thread takes its place, and the old one ends at the latest with the process."""

    def __init__(self, spec: CallSpec, clock: Clock) -> None:
        super().__init__(spec, clock)
        self._fn = spec.function()
        self._tasks: SimpleQueue[tuple[int, Args] | None] = SimpleQueue()
        self._idle = 0
        """Threads that wait for a task."""

    def begin(self, number: int, args: Args) -> None:
        with self._lock:
            self._bell = self._bell or Bell()
            self._begin(number)
            if self._idle:
                self._idle -= 1
            else:
                threading.Thread(target=self._work, name=self.spec.name, daemon=True).start()
        self._tasks.put((number, args))

    def close(self) -> None:
        with self._lock:
            super().close()
            for _ in range(self._idle):
                self._tasks.put(None)
            self._idle = 0

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            number, args = task
            outcome = attempt(self._fn, args, self.spec.fn)
            with self._lock:
                if not self._finish(number, outcome):
                    return  # abandoned: another thread has replaced this one
                self._idle += 1


def make_executor(spec: CallSpec, clock: Clock) -> Executor:
    """The executor for the `run` setting of a resolved spec."""
    if spec.run == "process":
        from runnel.core.calls.processes import ProcessExecutor

        return ProcessExecutor(spec, clock)
    if spec.run == "async":
        from runnel.core.calls.coroutines import AsyncExecutor

        return AsyncExecutor(spec, clock)
    return (InlineExecutor if spec.run == "inline" else ThreadExecutor)(spec, clock)


# ------------------------------------------------------------------------------------------------------------- the pool
@dataclass
class _Call:
    """A call that has no outcome yet."""

    ticket: int
    name: str
    args: Args
    retried: list[str] = field(default_factory=list)
    due: float = 0.0
    """When the next try may begin."""


class CallPool:
    """Calls several functions, each on its own executor, so that a slow one does not delay the others.

    `submit` returns a ticket, and `collect` the outcomes. With `ordered`, outcomes come in the order of submission, so that a
    run is deterministic; without it, each comes as soon as it is there. All deadlines are measured by one clock.
    """

    def __init__(self, specs: Sequence[CallSpec], *, ordered: bool = True, clock: Clock | None = None) -> None:
        self._clock, self._ordered = clock or WallClock(), ordered
        self._executors = {spec.name: make_executor(spec.resolved(), self._clock) for spec in specs}
        if len(self._executors) < len(specs):
            raise ConfigError("specs", [spec.name for spec in specs], "give each function a name of its own")
        self._queues: dict[str, deque[_Call]] = {name: deque() for name in self._executors}
        self._running: dict[int, _Call] = {}
        """By the number of the try."""
        self._later: list[_Call] = []
        """Calls that wait for their next try."""
        self._tickets: deque[int] = deque()
        """Of calls whose outcome was not collected, in the order of submission."""
        self._outcomes: dict[int, CallOutcome] = {}
        self._num_calls, self._num_tries = 0, 0

    def start(self) -> None:
        """Start worker processes early, while other things start too."""
        for executor in self._executors.values():
            executor.start()

    def submit(self, name: str, /, *args: object, **named: object) -> int:
        """Call the function `name`; returns the ticket of its outcome."""
        ticket = self._num_calls
        self._queues[name].append(_Call(ticket, name, (args, named)))
        self._tickets.append(ticket)
        self._num_calls += 1
        self._hand_out(name)
        return ticket

    def pending(self) -> int:
        """The number of calls whose outcome was not collected yet."""
        return len(self._tickets)

    def collect(self, wait_s: float = 0.0) -> list[CallOutcome]:
        """Outcomes that are ready (if `ordered`, up to the first that is not). Waits at most so long for the first one."""
        self._poll()
        if not (found := self._ready()) and wait_s > 0 and self._tickets:
            wakes = [wake for executor in self._executors.values() for wake in executor.wakes()]
            readable(wakes, min(wait_s, STEP_S))
            self._poll()
            found = self._ready()
        return found

    def wait_all(self) -> list[CallOutcome]:
        """All outcomes that were not collected yet. Waits for them."""
        found = list[CallOutcome]()
        while self._tickets:
            found += self.collect(STEP_S)
        return found

    def close(self) -> None:
        """Give up what runs, and release threads and processes."""
        for executor in self._executors.values():
            executor.close()

    def _poll(self) -> None:
        now = self._clock.now() if self._later else 0.0
        for call in [c for c in self._later if c.due <= now]:
            self._later.remove(call)
            self._queues[call.name].append(call)
            self._hand_out(call.name)
        for name, executor in self._executors.items():
            for number, outcome in executor.poll().items():
                self._settle(executor.spec, self._running.pop(number), outcome)
            self._hand_out(name)

    def _hand_out(self, name: str) -> None:
        """Begin waiting calls of a function, as many as its executor has room for."""
        executor, queue = self._executors[name], self._queues[name]
        while queue and executor.room(len(queue)) > 0:
            self._num_tries += 1
            self._running[self._num_tries] = queue[0]
            executor.begin(self._num_tries, queue.popleft().args)

    def _settle(self, spec: CallSpec, call: _Call, outcome: CallOutcome) -> None:
        """Keep the outcome of a try, or have the call tried again."""
        num = len(call.retried)
        if outcome.reason and outcome.transient and num < spec.retries:
            call.retried.append(outcome.reason)
            call.due = self._clock.now() + PAUSE_S * 2 ** min(num, NUM_DOUBLINGS)
            self._later.append(call)
            return
        reason = f"{outcome.reason} (after {num + 1} tries)" if outcome.reason and num else outcome.reason
        self._outcomes[call.ticket] = replace(outcome, ticket=call.ticket, reason=reason, retried=tuple(call.retried))

    def _ready(self) -> list[CallOutcome]:
        """Remove and return the outcomes that may be returned now."""
        if self._ordered:
            found = list[CallOutcome]()
            while self._tickets and self._tickets[0] in self._outcomes:
                found.append(self._outcomes.pop(self._tickets.popleft()))
            return found
        found = list(self._outcomes.values())
        self._outcomes.clear()
        for outcome in found:
            self._tickets.remove(outcome.ticket)
        return found
