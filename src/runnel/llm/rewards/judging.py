"""The reward pool: all components of a task are called, and what they return is checked.

An exception, a call that takes too long or a value that is no reward becomes a failure with its reason, never a 0. The pool
consumes jobs (prompts, completions, columns) and produces verdicts. It waits for user code (`core/calls/pool.py`), at most
`timeout_s` of the component for each try.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from runnel.core.calls.pool import STEP_S, Args, CallOutcome, CallPool, attempt
from runnel.core.checks import as_number, name_of, wrong_number
from runnel.core.clock import Clock
from runnel.core.errors import DataError
from runnel.core.user_code import lines_of, summary
from runnel.core.worker import progressed
from runnel.llm.rewards.components import Level, RewardComponent, RewardFn, Value

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
    raised. `retried`: the reasons why components were called again."""

    key: int
    rewards: Rewards | None
    failure: str = ""
    lines: str = ""
    retried: tuple[str, ...] = ()


def judge(fn: RewardFn, component: RewardComponent, job: RewardJob) -> RewardOutcome:
    """Call a component's function in this process and check what it returns."""
    return checked(component, job, attempt(fn, _arguments(component, job), component.fn))


def _arguments(component: RewardComponent, job: RewardJob) -> Args:
    """What a component's function is called with. Each call gets lists of its own."""
    return (list(job.prompts), list(job.completions)), job.columns_for(component)


def checked(component: RewardComponent, job: RewardJob, answer: CallOutcome) -> RewardOutcome:
    """What a function returned, as rewards by channel; wrong lengths, names and numbers are failures."""
    if answer.reason:
        return RewardOutcome(None, answer.reason, lines=answer.lines)
    try:
        values = list(answer.value)
    except Exception as error:  # no list, or a generator of the user that raises
        return RewardOutcome(None, summary(error), lines=lines_of(error, component.fn))
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


# ------------------------------------------------------------------------------------------------------------- the pool
@dataclass
class _Judged:
    """A job without a verdict, and what its components have given so far."""

    job: RewardJob
    outcomes: dict[str, RewardOutcome] = field(default_factory=dict)
    retried: list[str] = field(default_factory=list)


class RewardPool:
    """Runs the components of a reward in parallel, each on its own executor, so that a slow one does not delay the others.

    With `ordered`, verdicts are returned in the order of submission, so that a run is deterministic. Without it, a verdict is
    returned as soon as it is ready, and a job that hangs does not delay other groups.
    """

    def __init__(
        self,
        components: Sequence[RewardComponent],
        *,
        timeout_s: float = 30.0,
        ordered: bool = True,
        clock: Clock | None = None,
    ) -> None:
        parts = [c.resolved() for c in components]
        self._parts = {c.name: c for c in parts}
        self._calls = CallPool([c.call_spec(timeout_s) for c in parts], ordered=False, clock=clock)
        self._ordered = ordered
        self._jobs: deque[_Judged] = deque()
        self._asked: dict[int, tuple[_Judged, RewardComponent]] = {}
        """By the ticket of a call: a job's key may be used again later, a ticket never."""
        self._proved: set[str] = set()
        """Components that have returned a valid reward."""

    def start(self) -> None:
        """Start worker processes early, while the rest of the run starts too."""
        self._calls.start()

    def submit(self, job: RewardJob) -> int:
        """Call all components for a job; returns its key, which its verdict has too."""
        self._jobs.append(judged := _Judged(job))
        for part in self._parts.values():
            args, columns = _arguments(part, job)
            self._asked[self._calls.submit(f"reward.{part.name}", *args, **columns)] = judged, part
            progressed()  # an inline executor has run the function inside `submit`
        return job.key

    def pending(self) -> int:
        """The number of jobs whose verdict was not collected yet."""
        return len(self._jobs)

    def collect(self, *, block: bool) -> list[Verdict]:
        """Verdicts that are ready, oldest job first (if `ordered`, up to the first that is not ready); with `block`, all."""
        self.wait(0.0)
        out = self._ready()
        while block and self._jobs:
            self.wait(STEP_S)
            progressed()  # waiting is no hang: every job has its own deadline
            out += self._ready()
        return out

    def wait(self, seconds: float) -> None:
        """Wait for a component, at most so long; `collect` returns verdicts."""
        for answer in self._calls.collect(seconds):
            judged, part = self._asked.pop(answer.ticket)
            outcome = checked(part, judged.job, answer)
            self._prove(part.name, judged.job, outcome)
            judged.outcomes[part.name] = outcome
            judged.retried += [_named(part.name, reason, len(self._parts)) for reason in answer.retried]

    def close(self) -> None:
        self._calls.close()

    def _prove(self, name: str, job: RewardJob, outcome: RewardOutcome) -> None:
        """Raise if the first outcome of a function is no reward at all (text, a wrong number of rewards): the function has a
        mistake, and the run ends before it trains on other rewards. Later ones and infinite numbers are counted failures."""
        if outcome.broken and name not in self._proved:
            at = shown_prompt(job.prompts[0])
            raise DataError(f"reward {name!r}: {outcome.failure} {at}; see check_reward in docs/guides/add-a-reward.md")
        if outcome.rewards is not None:
            self._proved.add(name)

    def _ready(self) -> list[Verdict]:
        """Remove and return the verdicts of jobs that have all outcomes; in order of submission if `ordered`."""
        out, waiting = [], deque[_Judged]()
        for judged in self._jobs:
            if (waiting and self._ordered) or len(judged.outcomes) < len(self._parts):
                waiting.append(judged)
                continue
            verdict = joined(judged.job, {name: judged.outcomes[name] for name in self._parts})
            out.append(replace(verdict, retried=tuple(judged.retried)) if judged.retried else verdict)
        self._jobs = waiting
        return out


def joined(job: RewardJob, outcomes: Mapping[str, RewardOutcome]) -> Verdict:
    """The verdict on a job from all its components. A completion to which nothing applies has no total: a failure."""
    for name, outcome in outcomes.items():
        if outcome.rewards is None:
            return Verdict(job.key, None, _named(name, outcome.failure, len(outcomes)), outcome.lines)
    rewards = {channel: values for o in outcomes.values() for channel, values in (o.rewards or {}).items()}
    for i in range(len(job.completions)):
        if all(values[i] is None for values in rewards.values()):
            return Verdict(job.key, None, "no verdict: no component applies (None)")
    return Verdict(job.key, rewards)


def _named(name: str, reason: str, num_parts: int) -> str:
    """A reason, with the name of the component if there are several."""
    return reason if num_parts == 1 else f"{name}: {reason}"
