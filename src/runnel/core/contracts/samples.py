"""Sample streams: writers, readers, ranks that share a batch, samplers, transforms and replay stores."""

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
from runnel.core.worker import StageTimer


class SampleWriter(Protocol):
    """The producing end of a sample stream."""

    spec: StreamSpec

    def reserve(self) -> Slot | None:
        """A segment to fill; None if the stream is full or the admission rule allows no more now (back-pressure)."""
        ...

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        """Hand the segment over. `slot.header` must already have its versions, group, task and `used`."""
        ...

    def cancel(self, slot: Slot, reason: str) -> None:
        """Give the segment up; its rows count as cancelled for `reason`."""
        ...

    def reclaim(self, index: int) -> Slot:
        """After a restore: the reserved segment that this writer held in slot `index`."""
        ...

    def feedback(self) -> list[Feedback]:
        """Feedback of readers on committed segments, oldest first."""
        ...

    def version(self) -> int:
        """The learner's newest version that the stream knows."""
        ...

    def held_up_by(self) -> list[str]:
        """Readers that the stream waits for although the pacing reader does not need those segments any more."""
        ...


@dataclass
class Feedback:
    """Values that a reader sends back for the rows `sample_id ...` of one segment: priorities, success, ..."""

    sample_id: int
    values: dict[str, Tensor]


class SampleReader(Protocol):
    """The consuming end of a sample stream; each named reader has its own cursor and accounting.

    Only the pacing reader may `advance` and send feedback. A lossy reader gets copies, and fewer segments than it asked for if
    others were faster (`StreamSpec.lossy_readers`).
    """

    spec: StreamSpec

    def available(self) -> int:
        """Number of segments that `take` could return now. Segments that are too old are dropped first."""
        ...

    def take(self, num_segments: int) -> list[Segment]:
        """Exactly `num_segments` segments in sequence order, or an empty list."""
        ...

    def advance(self, version: int) -> None:
        """Tell the writers the learner's version; admission depends on it."""
        ...

    def release(self, segments: Sequence[Segment], *, feedback: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        """Count rows as consumed, and give their memory back to the writers."""
        ...

    def drop(self, segments: Sequence[Segment], reason: str) -> None:
        """Count rows as dropped for `reason`, unused, and give their memory back."""
        ...

    def hold(self, segments: Sequence[Segment]) -> None:
        """Give memory back, but keep the rows in flight until `settle`: the reader has its own copy (replay)."""
        ...

    def settle(self, *, consumed: int = 0, dropped: Mapping[str, int] | None = None) -> None:
        """Count held rows as consumed or dropped."""
        ...

    def held(self) -> int:
        """Number of rows that this reader holds: in its own copies, not in slots."""
        ...

    def accounting(self) -> Accounting: ...


class RankReader(Protocol):
    """How a rank other than 0 reads a stream that several ranks share: it gets its part of the segments that rank 0 took.

    Read `version` first, because the given part belongs to it. A rank whose own version is newer already had that part.
    """

    spec: StreamSpec

    def version(self) -> int:
        """The version of the last `advance` that is known here; below 0 before the first."""
        ...

    def given(self, rank: int, ranks: int) -> list[Segment]:
        """The part of `rank` in the segments that rank 0 has taken and not yet released."""
        ...

    def answer(self, segments: Sequence[Segment], feedback: Sequence[Mapping[str, Tensor]], *, rank: int) -> None:
        """Store a rank's feedback on its part. Rank 0 sends it when it releases. It has arrived when this call returns."""
        ...

    def meeting(self) -> str:
        """Address of the ranks' rendezvous; empty before `announce`. It is known once the stream has given a segment."""
        ...


class SharedReader(SampleReader, RankReader, Protocol):
    """The consuming end of a trainer's stream. Several ranks may share it: rank 0 takes and releases, others get their part."""

    def take(self, num_segments: int, *, ranks: int = 1) -> list[Segment]:
        """As for one reader; every rank gets its part (`core/sharding/batch_split.py`) of the segments."""
        ...

    def taken(self) -> list[Segment]:
        """The segments that this reader has taken and not released, in sequence order."""
        ...

    def announce(self, address: str) -> None:
        """Set the address of the ranks' rendezvous (IPv4 host:port). Only rank 0 calls this."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """What an actor runs: environments, conversations, or a data set."""

    def step(self, clients: Mapping[str, InferenceClient], writers: Mapping[str, SampleWriter]) -> int:
        """Do a bounded number of steps. Returns the work done (0: waiting). Both mappings are by stream name."""
        ...

    def waits_for(self) -> str:
        """In words, what the sampler waited for when `step` last returned 0. It is shown when the run makes no progress."""
        ...

    def events(self) -> list[WorkerEvent]:
        """Finished episodes and counted failures since the last call, as plain data (`{"kind": "episode", ...}`)."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Transform(Protocol):
    """What a transform worker runs: it reads sample streams, may ask inference streams, and may write sample streams.

    Replay, labelling, filters and archives are transforms. Rows are immutable: a transform that changes them writes rows of its
    own to another stream, with the ids of their sources in a field `parent`. A segment that `step` returns with is released,
    dropped or held (`SampleReader`), so that between two steps a transform has nothing that the streams do not know of.
    """

    def step(
        self,
        readers: Mapping[str, SampleReader],
        clients: Mapping[str, InferenceClient],
        writers: Mapping[str, SampleWriter],
        *,
        timer: StageTimer,
    ) -> int:
        """Do one bounded piece of work. Returns the work done (0: waiting). All mappings are by stream name; `timer` measures
        stages that the transform names."""
        ...

    def held(self) -> Mapping[str, int]:
        """Rows that it holds of each stream that it reads. At a barrier they are compared with the stream's account."""
        ...

    def waits_for(self) -> str:
        """In words, what it waited for when `step` last returned 0."""
        ...

    def events(self) -> list[WorkerEvent]: ...

    def snapshot(self) -> State: ...

    def restore(self, state: State, writers: Mapping[str, SampleWriter]) -> None: ...

    def close(self) -> None: ...


class Store(Protocol):
    """Replay memory behind a replay buffer."""

    def insert(self, segment: Segment) -> int:
        """Copy a segment in; returns how many rows were evicted that were never selected."""
        ...

    def sample(self, slot: Slot, rng: np.random.Generator) -> int:
        """Fill `slot` with one training batch; returns how many rows were selected for the first time."""
        ...

    def feedback(self, values: Feedback) -> None: ...

    def held_rows(self) -> int:
        """Number of stored rows of the source stream that were never selected."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps stored now."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...
