"""Staleness: admission rules that limit how far data may be behind the learner. Both ends of a stream use the same rule.

A rule has no state: counters in, a decision out. The counters are in the stream, so the writer's admission and the reader's
selection always agree, in one process or in many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from runnel.core.bounds import bounded, check_bounds
from runnel.core.errors import ConfigError
from runnel.core.records import Header, StreamSpec
from runnel.core.resuming import OnResume, may_change, stays


@dataclass(frozen=True)
class StalenessConfig:
    """How training and collecting overlap."""

    on_resume: ClassVar[OnResume] = stays(
        "mode", "max_lag", "max_concurrent", why="segments in progress were made under it"
    ) | may_change("balance", then="from the start on")

    mode: Literal["sync", "one_step", "window"] = "sync"
    """sync: each batch comes from the newest version. one_step: the next batch is made while this one trains. window: fully
    asynchronous, at most `max_lag` versions behind."""
    max_lag: int = bounded(4, at_least=0)
    """window: the most versions that a trained sample may be behind the learner."""
    max_concurrent: int = bounded(0, at_least=0)
    """Maximum number of segments in progress at once; 0: decided by the mode."""
    balance: Literal["off", "auto"] = "off"
    """window: auto starts and stops actors and policy workers while the run goes on, so that neither they nor the trainer wait
    long; within placement.max_actors and placement.max_policy_workers. Each change is told, and taken back if it slows the
    run."""

    @property
    def lag(self) -> int:
        return {"sync": 0, "one_step": 1, "window": self.max_lag}[self.mode]

    def check(self) -> None:
        check_bounds(self, "staleness.")
        if self.mode == "window" and self.max_lag < 1:
            raise ConfigError("staleness.max_lag", self.max_lag, "a window needs at least 1; use mode sync for 0")


@dataclass(frozen=True)
class Counters:
    """Counters of a stream when a writer asks for a segment. All count segments, except `version`."""

    version: int
    running: int
    accepted: int
    """Consumed, or finished and waiting."""


class AdmissionRule(Protocol):
    """The rule of one stream: which segments may start, which are read, which are dropped."""

    @property
    def exact(self) -> bool:
        """Whether segments are read in sequence order, and each names the version that must make it."""
        ...

    @property
    def turns(self) -> bool:
        """Exact: whether writers take turns by number, so that timing does not decide which writer makes which segment.

        Otherwise the first writer that asks gets the lowest open number, and writers may come and go.
        """
        ...

    def admit(self, counters: Counters) -> int:
        """Segments that may be started now (window)."""
        ...

    def admits_sequence(self, sequence: int, version: int, running: int = 0) -> bool:
        """Whether segment `sequence` may be started at learner `version`, with `running` in progress (exact)."""
        ...

    def version_for(self, sequence: int) -> int:
        """Exact: the version that must make segment `sequence`; -1 if any version may."""
        ...

    def evict(self, header: Header, version: int) -> bool:
        """Whether a finished segment is too old to train on."""
        ...

    def required_capacity(self, spec: StreamSpec) -> int:
        """Number of slots that the stream needs so that a batch can be filled under this rule."""
        ...


@dataclass(frozen=True)
class LagRule:
    """At most `lag` versions behind: 0 is synchronous, 1 is one-step-off, more is a window.

    Admission follows AReaL (arXiv 2505.24298): with `n` batches consumed, at most `(lag + n + 1) * batch` segments may have
    been accepted or be running. That bounds the aggregate; `evict` before each batch makes it a hard bound.

    The stream feeds the learner's versions `start ... stop - 1` (a warm-up and what follows it are two such spans).

    >>> p = LagRule(lag=1, batch=4, exact=True)
    >>> [p.version_for(s) for s in (0, 3, 4, 8, 12)]
    [0, 0, 0, 1, 2]
    >>> p.admits_sequence(7, version=0), p.admits_sequence(8, version=0)
    (True, False)
    >>> p.first_of(1), p.first_of(2)
    (8, 12)
    """

    lag: int
    batch: int
    exact: bool
    start: int = 0
    stop: int | None = None
    max_concurrent: int = 0
    turns: bool = True

    def _batches_open(self, version: int) -> int:
        """Batches that may have been started when the learner is at `version`."""
        num = version - self.start + self.lag + 1
        return max(0, num if self.stop is None else min(num, self.stop - self.start))

    def admit(self, counters: Counters) -> int:
        room = self._batches_open(counters.version) * self.batch - counters.accepted - counters.running
        if self.max_concurrent:
            room = min(room, self.max_concurrent - counters.running)
        return max(room, 0)

    def admits_sequence(self, sequence: int, version: int, running: int = 0) -> bool:
        if self.max_concurrent and running >= self.max_concurrent:
            return False
        return sequence < self._batches_open(version) * self.batch

    def version_for(self, sequence: int) -> int:
        if not self.exact:
            return -1
        return max(0, self.start + sequence // self.batch - self.lag)

    def first_of(self, version: int) -> int:
        """The number of the first segment that may start only when `version` is there (exact: that it must make)."""
        return max(0, version - self.start + self.lag) * self.batch

    def evict(self, header: Header, version: int) -> bool:
        return self.should_abort(header.version_min, version)

    def should_abort(self, version_min: int, version: int) -> bool:
        """Whether a running segment is already too old, so that it would be dropped when it finishes."""
        return version - version_min > self.lag

    def required_capacity(self, spec: StreamSpec) -> int:
        return (self.lag + 1) * self.batch


@dataclass(frozen=True)
class ReplayRatioRule:
    """Replay: `ratio` updates for each environment step, after `min_fill` steps, on both sides of the buffer.

    With `n` steps inserted, `updates(n)` updates are due. The buffer gives out no more, and an actor starts no segment
    before those that earlier segments paid for are done (but for `lag` of them). So the ratio holds by pacing, and nothing
    is dropped. The idea is Reverb's rate limiter (arXiv 2102.04736).

    >>> p = ReplayRatioRule(ratio=0.1, min_fill=100, segment_steps=10, lag=0)
    >>> p.updates(99), p.updates(100), p.updates(110), p.version_for(11), p.version_for(12)
    (0, 1, 2, 2, 3)
    """

    ratio: float
    min_fill: int
    segment_steps: int
    lag: int = 0
    exact: bool = True
    num_segments: int | None = None
    turns: bool = True

    def updates(self, num_steps: int) -> int:
        """Updates that `num_steps` inserted steps have paid for."""
        if num_steps < self.min_fill:
            return 0
        return 1 + math.floor((num_steps - self.min_fill) * self.ratio + 1e-9)

    def segments_for(self, num_steps: int) -> int:
        """The fewest segments that hold `num_steps` and of which the last pays for an update (so the learner hears of it).

        >>> ReplayRatioRule(ratio=0.05, min_fill=100, segment_steps=10).segments_for(210)
        22
        """
        n = -(-num_steps // self.segment_steps)
        while self.updates(n * self.segment_steps) == self.updates((n - 1) * self.segment_steps):
            n += 1
        return n

    def admits_sequence(self, sequence: int, version: int, running: int = 0) -> bool:
        if self.num_segments is not None and sequence >= self.num_segments:
            return False
        return version >= self.updates(sequence * self.segment_steps) - self.lag

    def admit(self, counters: Counters) -> int:
        started = counters.accepted + counters.running
        return 1 if self.admits_sequence(started, counters.version) else 0

    def version_for(self, sequence: int) -> int:
        if not self.exact:
            return -1
        return max(0, self.updates(sequence * self.segment_steps) - self.lag)

    def evict(self, header: Header, version: int) -> bool:
        return False

    def required_capacity(self, spec: StreamSpec) -> int:
        return 1


def check_capacity(policy: AdmissionRule, spec: StreamSpec) -> None:
    """Refuse a stream that is too small to ever fill a batch under its rule; the error gives the capacity needed."""
    need = policy.required_capacity(spec)
    if spec.capacity < need:
        raise ConfigError(
            f"{spec.name}.capacity", spec.capacity, f"its staleness policy needs {need} segments to fill a batch; use {need}"
        )
