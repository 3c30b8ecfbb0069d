"""Wrappers of stream and channel ends that record everything that passes through them in the trace.

They are used only in a traced run (`run/wiring.py`), and change no data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from runnel.core.contracts.params import ParamSet
from runnel.core.records import Segment, Slot
from runnel.core.trace import LOAD, MARK, PUBLISH, TraceTrack

OFTEN = ("available", "advance", "settle", "version", "feedback", "newest")
"""Methods that every poll calls and that are not recorded: bound directly, because `__getattr__` is slow."""


class Traced:
    """Base of the wrappers: forwards every method that is not recorded."""

    def __init__(self, real: Any, track: TraceTrack) -> None:
        self._real, self._track, self._record, self._now = real, track, track.record, track.now
        for name in OFTEN:
            if hasattr(real, name):
                setattr(self, name, getattr(real, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    _rows = 0

    def _codes(self, *whats: str) -> list[int]:
        return [self._track.code(MARK, f"{what} {self._real.spec.name}") for what in whats]

    def _mark(self, code: int, segments: Sequence[Segment]) -> None:
        now, rows = self._now(), self._rows
        for segment in segments:
            header = segment.header
            self._record((code, now, header.sample_id, header.version_min, rows))


class TracedWriter(Traced):
    """A traced `SampleWriter`."""

    def __init__(self, real: Any, track: TraceTrack) -> None:
        super().__init__(real, track)
        self._rows = real.spec.num_rows
        self._really = real.reserve, real.commit
        self._reserve, self._commit, self._cancel = self._codes("reserve", "commit", "cancel")

    def reserve(self) -> Slot | None:
        slot: Slot | None = self._really[0]()
        if slot is not None:
            header = slot.header
            self._record((self._reserve, self._now(), header.sample_id, header.required_version, self._rows))
        return slot

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        header = slot.header
        self._record((self._commit, self._now(), header.sample_id, header.version_min, self._rows))
        self._really[1](slot, num_steps=num_steps)

    def cancel(self, slot: Slot, reason: str) -> None:
        self._record((self._cancel, self._now(), slot.header.sample_id, -1, self._rows))
        self._real.cancel(slot, reason)


class TracedReader(Traced):
    """A traced `SampleReader`, or `SharedReader` of the leading rank."""

    def __init__(self, real: Any, track: TraceTrack) -> None:
        super().__init__(real, track)
        self._rows = real.spec.num_rows
        self._take, self._release, self._drop, self._hold = self._codes("take", "release", "drop", "hold")

    def take(self, num_segments: int, **ranks: int) -> list[Segment]:
        segments: list[Segment] = self._real.take(num_segments, **ranks)
        if segments:
            self._mark(self._take, segments)
        return segments

    def release(self, segments: Sequence[Segment], *, feedback: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        self._mark(self._release, segments)
        self._real.release(segments, feedback=feedback)

    def drop(self, segments: Sequence[Segment], reason: str) -> None:
        self._mark(self._drop, segments)
        self._real.drop(segments, reason)

    def hold(self, segments: Sequence[Segment]) -> None:
        self._mark(self._hold, segments)
        self._real.hold(segments)


class TracedPublisher(Traced):
    """A traced `ParamPublisher` or `SharedPublisher`: records when a version is published or committed."""

    def __init__(self, real: Any, track: TraceTrack) -> None:
        super().__init__(real, track)
        self._code = track.code(PUBLISH, real.name)

    def publish(self, version: int, params: Mapping[str, Tensor]) -> None:
        self._record((self._code, self._now(), version, 0.0, 0.0))
        self._real.publish(version, params)

    def commit(self, version: int) -> None:
        self._record((self._code, self._now(), version, 0.0, 0.0))
        self._real.commit(version)


class TracedSubscriber(Traced):
    """A traced `ParamSubscriber`: records when a version is loaded."""

    def __init__(self, real: Any, track: TraceTrack, channel: str) -> None:
        super().__init__(real, track)
        self._code = track.code(LOAD, channel)

    def poll(self, version: int = -1) -> ParamSet | None:
        found: ParamSet | None = self._real.poll(version)
        if found is not None:
            self._record((self._code, self._now(), found.version, 0.0, 0.0))
        return found
