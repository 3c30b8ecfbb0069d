"""Sample streams: writers, readers, ranks that share a batch, samplers and replay stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from runnel.core.accounting import Accounting
from runnel.core.contracts.inference import InferenceClient
from runnel.core.records import Segment, Slot, StreamSpec
from runnel.core.state import State, WorkerEvent


class SampleWriter(Protocol):
    """The producing end of a sample stream."""

    spec: StreamSpec

    def reserve(self) -> Slot | None:
        """A segment to fill, or None: full, or the staleness policy admits no more now (back-pressure)."""
        ...

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        """Hand the segment over. `slot.header` must carry versions, group, task and `used` by then."""
        ...

    def cancel(self, slot: Slot, reason: str) -> None:
        """Give the segment up; its rows are accounted as cancelled for `reason`."""
        ...

    def reclaim(self, index: int) -> Slot:
        """After a restore: the reserved segment that this writer held in slot `index`."""
        ...

    def feedback(self) -> list[Feedback]:
        """What readers sent back about committed segments, oldest first."""
        ...

    def version(self) -> int:
        """How far the learner is, as the stream knows."""
        ...


@dataclass
class Feedback:
    """A reader's word on the rows `sample_id ...` of one segment: priorities, success, whatever the source understands."""

    sample_id: int
    values: dict[str, Tensor]


class SampleReader(Protocol):
    """The consuming end of a sample stream; each named reader has its own cursor and accounting."""

    spec: StreamSpec

    def available(self) -> int:
        """Segments that `take` could give now, after a sweep of those that have grown too old."""
        ...

    def take(self, num_segments: int) -> list[Segment]:
        """Exactly `num_segments` segments in sequence order, or an empty list."""
        ...

    def advance(self, version: int) -> None:
        """Tell the writers how far the learner is: admission depends on it."""
        ...

    def release(self, segments: Sequence[Segment], *, feedback: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        """Rows are consumed; their memory goes back to the writers."""
        ...

    def drop(self, segments: Sequence[Segment], reason: str) -> None:
        """Rows are dropped, unused."""
        ...

    def hold(self, segments: Sequence[Segment]) -> None:
        """The reader has copied the rows and keeps them (replay): memory goes back, rows stay in flight until `settle`."""
        ...

    def settle(self, *, consumed: int = 0, dropped: Mapping[str, int] | None = None) -> None:
        """Held rows that are now consumed or dropped."""
        ...

    def accounting(self) -> Accounting: ...


class RankReader(Protocol):
    """What a rank that follows sees of a stream that several ranks read: its part of what rank 0 has taken.

    Ask for `version` first: what is given belongs to it. A follower knows by its own version whether it had that part already.
    """

    spec: StreamSpec

    def version(self) -> int:
        """How far the learner is: the last `advance`, as far as it is known here; below 0 before anything is."""
        ...

    def given(self, rank: int, ranks: int) -> list[Segment]:
        """The part of `rank` in what rank 0 has taken and not yet released."""
        ...

    def answer(self, segments: Sequence[Segment], feedback: Sequence[Mapping[str, Tensor]], *, rank: int) -> None:
        """Leave a rank's word on its part; rank 0 hands it over when it releases. It has arrived when this returns."""
        ...

    def meeting(self) -> str:
        """Where the ranks meet; empty before it is announced. Of a stream that has given something it is known."""
        ...


class SharedReader(SampleReader, RankReader, Protocol):
    """The consuming end of a stream that several ranks read: rank 0 takes and releases, the others are given their part."""

    def take(self, num_segments: int, *, ranks: int = 1) -> list[Segment]:
        """As for one reader; every rank is given its part (`core.shares`) of what is taken."""
        ...

    def announce(self, address: str) -> None:
        """Rank 0: where the ranks meet (IPv4 host:port)."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """What an actor runs: environments, conversations, or a data set."""

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        """A bounded number of steps. Returns the work done (0: waiting). Both mappings are by stream name."""
        ...

    def waits_for(self) -> str:
        """In words, what `step` last returned 0 for. Shown when nothing moves."""
        ...

    def events(self) -> list[WorkerEvent]:
        """Finished episodes and counted failures since the last call, as plain data (`{"kind": "episode", ...}`)."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None: ...

    def close(self) -> None: ...


class Store(Protocol):
    """Replay memory behind a buffer worker."""

    def insert(self, segment: Segment) -> int:
        """Copy a segment in; returns how many rows were evicted that were never selected."""
        ...

    def sample(self, slot: Slot, rng: np.random.Generator) -> int:
        """Fill `slot` with one training batch; returns how many rows were selected for the first time."""
        ...

    def feedback(self, values: Feedback) -> None: ...

    def held_rows(self) -> int:
        """Rows of the source stream that are stored and were never selected yet."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps stored now."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...
