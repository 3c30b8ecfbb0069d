"""Call a reward function and check what it returns, in the caller's thread or in other threads.

An exception or a value that is no reward becomes a failure with its reason. An executor runs the jobs of one component and
returns outcomes by ticket, in any order. The executor with worker processes is in `processes.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from runnel.core.checks import as_number, name_of, wrong_number
from runnel.core.clock import Clock
from runnel.core.user_code import lines_of, summary
from runnel.llm.rewards.components import Level, Reward, RewardComponent, RewardFn, Value

_PROMPT = 80
"""Letters of a prompt in a message."""
Rewards = dict[str, list[Value]]
"""By channel, one value a completion."""


@dataclass(frozen=True)
class RewardJob:
    """The completions of one group. The verdict has the same `key`; `ids` are the tokens of each completion; `messages` are the
    prompts with their roles (without them, a prompt is one message of the user)."""

    key: int
    prompts: Sequence[str]
    completions: Sequence[str]
    columns: Mapping[str, Sequence[object]]
    ids: Sequence[Sequence[int]] = ()
    messages: Sequence[Sequence[Mapping[str, str]]] = ()

    def columns_for(self, component: RewardComponent) -> dict[str, Sequence[object]]:
        """Columns for the function. Tokens and messages are included only if the component needs them."""
        extra: dict[str, Sequence[object]] = {}
        if component.tokens or component.level != "sequence":
            extra["completion_ids"] = [list(i) for i in self.ids]
        if component.messages:
            plain = [[{"role": "user", "content": prompt}] for prompt in self.prompts]
            extra["prompt_messages"] = [[dict(m) for m in talk] for talk in self.messages or plain]
        return {**self.columns, **extra}


@dataclass(frozen=True)
class RewardOutcome:
    """The rewards of one component for one job, or the reason why there are none. `broken`: the function returned something
    that is no reward of any kind, so it has a mistake. `lines`: the lines of user code that raised (`core/user_code.py`)."""

    rewards: Rewards | None
    failure: str = ""
    broken: bool = False
    lines: str = ""


@dataclass(frozen=True)
class Verdict:
    """Rewards by channel for every completion of job `key`, or the reason why there are none, with the lines of user code that
    raised."""

    key: int
    rewards: Rewards | None
    failure: str = ""
    lines: str = ""


def call(fn: RewardFn, prompts: Sequence[str], completions: Sequence[str], columns: Mapping[str, object]) -> list[Reward]:
    """Call a reward function, sync or async, and return its list."""
    answer = fn(list(prompts), list(completions), **columns)
    return list(asyncio.run(_await(answer)) if inspect.isawaitable(answer) else answer)


async def _await(answer: Awaitable[Sequence[Reward]]) -> Sequence[Reward]:
    return await answer


def judge(fn: RewardFn, component: RewardComponent, job: RewardJob) -> RewardOutcome:
    """Call a component's function in this process and check what it returns."""
    try:
        values = call(fn, job.prompts, job.completions, job.columns_for(component))
    except (Exception, SystemExit) as error:  # user code, which may run a model's code: counted, and the run goes on
        return RewardOutcome(None, summary(error), lines=lines_of(error, component.fn))
    return checked(component, job, values)


def checked(component: RewardComponent, job: RewardJob, values: Sequence[object]) -> RewardOutcome:
    """The values that a function returned, as rewards by channel; wrong lengths, names and numbers are failures."""
    if len(values) != len(job.completions):
        return _failed(component, f"{len(values)} rewards for {len(job.completions)} completions", broken=True)
    out: Rewards = {channel: [] for channel in component.weights}
    for i, value in enumerate(values):
        named = value if isinstance(value, Mapping) else dict.fromkeys(out, value) if value is None else {component.name: value}
        if set(named) != set(out):
            return _failed(component, f"channels {sorted(map(str, named))} instead of {sorted(out)}", broken=True)
        for channel, number in named.items():
            wrong = None if number is None else _wrong(number, component.level, job, i)
            if wrong is not None:
                return _failed(component, f"{channel} {wrong}", broken=not _is_number(number))
            out[channel].append(_plain(number))
    return RewardOutcome(out)


def _failed(component: RewardComponent, what: str, *, broken: bool) -> RewardOutcome:
    """The outcome for values that cannot be used; for a mistake in the code it names the function."""
    who = component.fn if isinstance(component.fn, str) else name_of(component.fn)
    return RewardOutcome(None, f"{who}: {what}" if broken else what, broken)


def _is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_number(value: object) -> bool:
    """Whether a value is a number or a list of numbers. They may be infinite or NaN: a correct function can return those."""
    if _is_list(value):
        return all(_is_number(v) for v in value)
    return as_number(value) is not None


def _plain(value: object) -> Value:
    if value is None:
        return None
    number = as_number(value)
    if number is not None:
        return number
    assert isinstance(value, Sequence)
    return [_plain(v) for v in value]


def _wrong(value: object, level: Level, job: RewardJob, i: int) -> str | None:
    """Why `value` is no reward of this level for completion `i`, as the end of a sentence; None if it is one."""
    if level == "sequence":
        return wrong_number(value)
    if level == "segment":
        return _wrong_segments(value, len(job.completions[i]))
    return _wrong_numbers(value, len(job.ids[i]), "token") if level == "token" else _wrong_numbers(value, 1, "turn")


def _wrong_numbers(value: object, count: int, what: str) -> str | None:
    if not _is_list(value):
        return f"is {value!r}"[:80] + f" instead of a list of numbers, one a {what}"
    if len(value) != count:
        return f"has {len(value)} numbers for {count} {what}s"
    return next((f"of a {what} {wrong}" for v in value if (wrong := wrong_number(v))), None)


def _wrong_segments(value: object, size: int) -> str | None:
    for part in value if _is_list(value) else [value]:
        if not _is_list(part) or len(part) != 3:
            return f"has {part!r}"[:80] + " instead of [start, end, number]"
        if wrong := next((w for v in part if (w := wrong_number(v))), None):
            return f"of a segment {wrong}"
        if not 0 <= part[0] <= part[1] <= size:
            return f"has the span {part[0]}..{part[1]} in a completion of {size} characters"
    return None


def shown_prompt(prompt: str) -> str:
    """A prompt in parentheses, shortened, for a message.

    >>> shown_prompt("a b")
    "(prompt 'a b')"
    """
    text = repr(prompt)
    return f"(prompt {text if len(text) <= _PROMPT else text[:_PROMPT] + ' ...'})"


def joined(job: RewardJob, outcomes: Mapping[str, RewardOutcome]) -> Verdict:
    """The verdict on a job from all its components. A completion to which nothing applies has no total: a failure."""
    for name, outcome in outcomes.items():
        if outcome.rewards is None:
            failure = outcome.failure if len(outcomes) == 1 else f"{name}: {outcome.failure}"
            return Verdict(job.key, None, failure, outcome.lines)
    rewards = {channel: values for o in outcomes.values() for channel, values in (o.rewards or {}).items()}
    for i in range(len(job.completions)):
        if all(values[i] is None for values in rewards.values()):
            return Verdict(job.key, None, "no verdict: no component applies (None)")
    return Verdict(job.key, rewards)


def scalar(value: Value) -> float:
    """A reward of any level as one number: the sum over tokens, segments or turns; NaN where it does not apply.

    >>> scalar(0.5), scalar([1.0, 2.0]), scalar([[0, 3, 1.0], [3, 5, -0.5]])
    (0.5, 3.0, 0.5)
    """
    if value is None:
        return math.nan
    if isinstance(value, list):
        return float(sum(v[2] if isinstance(v, list) else v for v in value))
    return value


class RewardExecutor(ABC):
    """Runs one component's jobs. A job has a time limit, except in `InlineExecutor`."""

    def start(self) -> None:
        """Start what takes time, before the first job."""

    @abstractmethod
    def submit(self, ticket: int, job: RewardJob) -> None: ...

    @abstractmethod
    def poll(self, wait_s: float = 0.0) -> dict[int, RewardOutcome]:
        """Outcomes since the last call, timeouts included. It waits up to `wait_s` for the first one."""

    def close(self) -> None:
        """Release threads and processes."""


def timed_out(component: RewardComponent, seconds: float) -> RewardOutcome:
    """The outcome of a job that took too long, with the setting that gives it more time."""
    field = f"timeout_s of reward {component.name!r}" if component.timeout_s else "data.reward_timeout_s"
    return RewardOutcome(None, f"timeout after {seconds:g} s ({field})")


class InlineExecutor(RewardExecutor):
    """Runs a job inside `submit`: the cheapest way for a function that is fast and cannot hang."""

    def __init__(self, component: RewardComponent) -> None:
        self._component, self._fn = component, component.function()
        self._found: dict[int, RewardOutcome] = {}

    def submit(self, ticket: int, job: RewardJob) -> None:
        self._found[ticket] = judge(self._fn, self._component, job)

    def poll(self, wait_s: float = 0.0) -> dict[int, RewardOutcome]:
        found, self._found = self._found, {}
        return found


class ThreadExecutor(RewardExecutor):
    """Runs jobs in `component.workers` threads. A job that exceeds its time is abandoned: its thread cannot be stopped, so a
    new thread replaces it, and the old one ends at the latest with the process."""

    def __init__(self, component: RewardComponent, *, timeout_s: float, clock: Clock) -> None:
        self._component, self._timeout_s, self._clock = component, timeout_s, clock
        self._fn = component.function()
        self._queue: deque[tuple[int, RewardJob]] = deque()
        self._began: dict[int, float] = {}
        self._found: dict[int, RewardOutcome] = {}
        self._changed = threading.Condition()
        self._threads = 0
        self._closed = False

    def submit(self, ticket: int, job: RewardJob) -> None:
        with self._changed:
            self._queue.append((ticket, job))
            if self._threads < self._component.workers:
                self._start()
            self._changed.notify_all()

    def poll(self, wait_s: float = 0.0) -> dict[int, RewardOutcome]:
        with self._changed:
            self._give_up()
            if not self._found and wait_s > 0:
                self._changed.wait(wait_s)
                self._give_up()
            found, self._found = self._found, {}
            return found

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._changed.notify_all()

    def _give_up(self) -> None:
        now = self._clock.now()
        for ticket in [t for t, began in self._began.items() if now - began >= self._timeout_s]:
            del self._began[ticket]
            self._found[ticket] = timed_out(self._component, self._timeout_s)
            self._threads -= 1
            if self._queue:
                self._start()

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"reward-{self._component.name}", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                ticket, job = self._queue.popleft()
                self._began[ticket] = self._clock.now()
            outcome = judge(self._fn, self._component, job)
            with self._changed:
                if self._began.pop(ticket, None) is None:
                    return  # abandoned: another thread has replaced this one
                self._found[ticket] = outcome
                self._changed.notify_all()
