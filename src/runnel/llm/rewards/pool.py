"""The reward pool: all components of a task on their executors. A reward that fails is counted as a failure, never as a 0.

It consumes jobs (prompts, completions, columns) and produces verdicts in the order of submission. It waits for user code, at
most `timeout_s` of the component for each job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from runnel.core.clock import Clock, WallClock
from runnel.core.errors import DataError
from runnel.core.worker import progressed
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.rewards.judging import (
    InlineExecutor,
    RewardExecutor,
    RewardJob,
    RewardOutcome,
    ThreadExecutor,
    Verdict,
    joined,
    shown_prompt,
)
from runnel.llm.rewards.processes import ProcessExecutor

WAIT_S = 0.05


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
        clock = clock or WallClock()
        parts = [c.resolved() for c in components]
        self._executors = {c.name: make_executor(c, timeout_s=c.timeout_s or timeout_s, clock=clock) for c in parts}
        self._jobs: deque[tuple[int, RewardJob]] = deque()
        """Jobs without a verdict, each with its ticket: a job's key may be used again later, a ticket never."""
        self._outcomes: dict[str, dict[int, RewardOutcome]] = {name: {} for name in self._executors}
        self._next, self._ordered = 0, ordered
        self._proved: set[str] = set()
        """Components that have returned a valid reward."""

    def start(self) -> None:
        """Start worker processes early, while the rest of the run starts too."""
        for executor in self._executors.values():
            executor.start()

    def submit(self, job: RewardJob) -> int:
        """Start a job on all executors; returns its key, which its verdict has too."""
        self._jobs.append((self._next, job))
        for executor in self._executors.values():
            executor.submit(self._next, job)
            progressed()  # an inline executor has run the function inside `submit`
        self._next += 1
        return job.key

    def pending(self) -> int:
        """The number of jobs whose verdict was not collected yet."""
        return len(self._jobs)

    def collect(self, *, block: bool) -> list[Verdict]:
        """Verdicts that are ready, oldest job first (if `ordered`, up to the first that is not ready); with `block`, all."""
        self._poll(0.0)
        out = self._ready()
        while block and self._jobs:
            self._poll(WAIT_S)
            progressed()  # waiting is no hang: every job has its own deadline
            out += self._ready()
        return out

    def wait(self, seconds: float) -> None:
        """Wait for a verdict, at most so long; `collect` returns it."""
        self._poll(seconds)

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()

    def _poll(self, wait_s: float) -> None:
        """Poll every executor; wait only for one whose outcome the oldest job still needs."""
        waits = wait_s
        for name, executor in self._executors.items():
            missing = bool(self._jobs) and self._jobs[0][0] not in self._outcomes[name]
            found = executor.poll(waits if missing else 0.0)
            self._prove(name, found)
            self._outcomes[name] |= found
            waits = 0.0 if missing else waits

    def _prove(self, name: str, outcomes: Mapping[int, RewardOutcome]) -> None:
        """Raise if the first outcome of a function is no reward at all (text, a wrong number of rewards): the function has a
        mistake, and the run ends before it trains on other rewards. Later ones and infinite numbers are counted failures."""
        for ticket, outcome in outcomes.items() if name not in self._proved else ():
            if outcome.broken:
                at = next(shown_prompt(job.prompts[0]) for t, job in self._jobs if t == ticket)
                raise DataError(f"reward {name!r}: {outcome.failure} {at}; see check_reward in docs/guides/add-a-reward.md")
            if outcome.rewards is not None:
                self._proved.add(name)
                return

    def _ready(self) -> list[Verdict]:
        """Remove and return the verdicts of jobs that have all outcomes; in order of submission if `ordered`."""
        out, waiting = [], deque[tuple[int, RewardJob]]()
        for ticket, job in self._jobs:
            if (waiting and self._ordered) or not all(ticket in found for found in self._outcomes.values()):
                waiting.append((ticket, job))
                continue
            out.append(joined(job, {name: found.pop(ticket) for name, found in self._outcomes.items()}))
        self._jobs = waiting
        return out


def make_executor(component: RewardComponent, *, timeout_s: float, clock: Clock) -> RewardExecutor:
    """The executor for the `run` setting of a component."""
    if component.run == "inline":
        return InlineExecutor(component)
    kind = ProcessExecutor if component.run == "process" else ThreadExecutor
    return kind(component, timeout_s=timeout_s, clock=clock)
