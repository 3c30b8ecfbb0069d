"""The accounting identity of a sample stream under random operations, against a second book that is kept by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import torch

from runnel.core.contracts.samples import SampleReader, SampleWriter
from runnel.core.records import FieldSpec, Header, Segment, Slot, StreamSpec
from runnel.core.state import State
from runnel.flow.staleness import AdmissionRule, LagRule, ReplayRatioRule
from runnel.testing.expect import equal, true

Item = TypeVar("Item")


class SampleStream(Protocol):
    """The ends of one stream. An end that is asked for twice may be the same object."""

    def writer(self, index: int) -> SampleWriter: ...

    def reader(self, name: str) -> SampleReader: ...

    def cancel_writer(self, writer: int, reason: str) -> int:
        """A writer is gone: cancel what it had reserved. Returns the rows."""
        ...

    def lose_reader(self, name: str, consumed_before: int) -> int:
        """The worker behind a reader is gone. A lossy one loses what it held; another goes on from a state in which it had
        consumed `consumed_before` rows. Returns the rows that are lost."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


MakeSamples = Callable[[StreamSpec, AdmissionRule], SampleStream]
POLICIES: tuple[AdmissionRule, ...] = (
    LagRule(lag=1, batch=2, exact=True),
    LagRule(lag=1, batch=2, exact=False),
    LagRule(lag=3, batch=2, exact=False, max_concurrent=2),
    ReplayRatioRule(ratio=0.2, min_fill=20, segment_steps=5, lag=1),
    ReplayRatioRule(ratio=0.2, min_fill=20, segment_steps=5, exact=False),
)
OPERATIONS = (
    "reserve",
    "commit",
    "commit",
    "cancel",
    "take",
    "release",
    "drop",
    "hold",
    "settle",
    "advance",
    "feedback",
    "lose",
    "lose_reader",
)
ROWS, CAPACITY, WRITERS = 3, 6, 2


def every_row_is_accounted_for_at_every_moment(make: MakeSamples) -> None:
    """dispatched = consumed + dropped + cancelled + in flight, for each reader, after each of many random operations."""
    for seed, policy in enumerate(POLICIES):
        for readers, lossy in ((("trainer",), ()), (("a", "b"), ()), (("a", "b"), ("c",)), (("a",), ("c", "d"))):
            _Book(make, policy, readers, lossy, np.random.default_rng(seed)).play(250)


class _Book:
    """Plays random operations and keeps an account of rows for each reader."""

    def __init__(
        self,
        make: MakeSamples,
        policy: AdmissionRule,
        readers: tuple[str, ...],
        lossy: tuple[str, ...],
        rng: np.random.Generator,
    ) -> None:
        feedback = {"priority": FieldSpec(("B",))}
        spec = StreamSpec(
            "book",
            {"x": FieldSpec(("B",))},
            {"B": ROWS},
            capacity=CAPACITY,
            readers=readers,
            lossy_readers=lossy,
            num_writers=WRITERS,
            feedback=feedback,
        )
        self.policy, self.rng, self.stream = policy, rng, make(spec, policy)
        self.writers = [self.stream.writer(i) for i in range(WRITERS)]
        self.pace, self.lossy, readers = readers[0], lossy, readers + lossy
        self.readers = {name: self.stream.reader(name) for name in readers}
        self.reserved: list[tuple[int, Slot]] = []
        self.taken: dict[str, list[Segment]] = {name: [] for name in readers}
        self.held = dict.fromkeys(readers, 0)
        self.dispatched, self.steps, self.version = 0, 0, 0
        self.cancelled: Counter[str] = Counter()
        self.consumed: Counter[str] = Counter()
        self.dropped: dict[str, Counter[str]] = {name: Counter() for name in readers}
        self.wanted: dict[int, set[str]] = {}
        """By sample id of a committed segment, the readers that have not had it."""
        self.unread: dict[int, Header] = {}
        """Committed segments that the pacing reader has not taken."""

    def play(self, num: int) -> None:
        for _ in range(num):
            operation = OPERATIONS[int(self.rng.integers(len(OPERATIONS)))]
            name = list(self.readers)[int(self.rng.integers(len(self.readers)))]
            getattr(self, "_" + operation)(name)
            self._compare(operation)
        true(self.dispatched > CAPACITY * ROWS, f"{self.policy} let almost nothing through: {self.dispatched} rows")

    def _compare(self, operation: str) -> None:
        for name, reader in self.readers.items():
            account = reader.accounting()
            where = f"after {operation} under {self.policy}, reader {name}"
            equal(account.balance, 0, f"rows unaccounted for {where} ({account})")
            equal((account.dispatched, account.steps), (self.dispatched, self.steps), f"rows and steps {where}")
            equal(account.cancelled, dict(self.cancelled), f"cancelled {where}")
            equal(account.consumed, self.consumed[name], f"consumed {where}")
            equal(reader.held(), self.held[name], f"held {where}")
            equal(account.dropped, dict(self.dropped[name]), f"dropped {where}")

    def _pick(self, items: list[Item]) -> Item | None:
        return items.pop(int(self.rng.integers(len(items)))) if items else None

    def _reserve(self, name: str) -> None:
        writer = int(self.rng.integers(WRITERS))
        slot = self.writers[writer].reserve()
        if slot is not None:
            self.reserved.append((writer, slot))
            self.dispatched += ROWS

    def _commit(self, name: str) -> None:
        found = self._pick(self.reserved)
        if found is not None:
            writer, slot = found
            version = self.version if slot.header.required_version < 0 else slot.header.required_version
            slot.header.version_min = slot.header.version_max = version
            self.writers[writer].commit(slot, num_steps=5)
            self.steps += 5
            self.wanted[slot.header.sample_id] = set(self.readers)
            self.unread[slot.header.sample_id] = slot.header

    def _cancel(self, name: str) -> None:
        found = self._pick(self.reserved) if self.rng.random() < 0.3 else None
        if found is not None:
            self.writers[found[0]].cancel(found[1], "aborted")
            self.cancelled["aborted"] += ROWS

    def _lose(self, name: str) -> None:
        if self.rng.random() < 0.2:
            mine = [s for w, s in self.reserved if w == 0]
            self.reserved = [(w, s) for w, s in self.reserved if w != 0]
            equal(self.stream.cancel_writer(0, "worker_lost"), ROWS * len(mine), "rows of the lost writer")
            if mine:
                self.cancelled["worker_lost"] += ROWS * len(mine)

    def _lose_reader(self, name: str) -> None:
        if self.rng.random() < 0.5:
            return
        before = int(self.rng.integers(self.consumed[name] + 1))
        lost = self.held[name] if name in self.lossy else self.consumed[name] - before
        equal(self.stream.lose_reader(name, before), lost, f"rows that reader {name} lost")
        gone = self.taken[name]
        self.taken[name] = []
        if name in self.lossy:
            self.held[name] = 0
        else:  # what it had taken is there to be taken again, and what it had done since is undone
            self.consumed[name] = before
            self.unread |= {s.header.sample_id: s.header for s in gone if name == self.pace}
        if lost:
            self.dropped[name]["worker_lost" if name in self.lossy else "lost_with_trainer"] += lost

    def _take(self, name: str) -> None:
        num = int(self.rng.integers(1, 3))
        if name == self.pace:
            self._evict()
        available = self.readers[name].available()
        found = self.readers[name].take(num)
        if name in self.lossy:
            equal(len(found), min(num, available), "segments copied")
            self.held[name] += ROWS * len(found)
            for segment in found:
                self._had(name, segment.header)
        else:
            equal(len(found), num if available >= num else 0, "segments taken")
        self.taken[name] += found
        if name == self.pace:
            for segment in found:
                del self.unread[segment.header.sample_id]

    def _evict(self) -> None:
        """The pacing reader looks at the stream, which drops what is too old for it."""
        old = [h for h in self.unread.values() if h.version_min >= 0 and self.policy.evict(h, self.version)]
        for header in old:
            del self.unread[header.sample_id]
            self.dropped[self.pace]["stale"] += ROWS
            self._had(self.pace, header)

    def _had(self, name: str, header: Header) -> None:
        """`name` has had a segment; if it was the last reader that the slot waits for, lossy readers have missed it."""
        waiting = self.wanted[header.sample_id]
        waiting.discard(name)
        if waiting <= set(self.lossy):
            for late in waiting:
                self.dropped[late]["skipped"] += ROWS
            waiting.clear()

    def _left(self, name: str, segment: Segment) -> None:
        """`name` has released or dropped the segment."""
        if name in self.lossy:
            self.held[name] -= ROWS
        else:
            self._had(name, segment.header)

    def _release(self, name: str) -> None:
        segment = self._pick(self.taken[name])
        if segment is not None:
            says = [{"priority": torch.ones(ROWS)}] if name == self.pace and self.rng.random() < 0.5 else None
            self.readers[name].release([segment], feedback=says)
            self.consumed[name] += ROWS
            self._left(name, segment)

    def _drop(self, name: str) -> None:
        segment = self._pick(self.taken[name])
        if segment is not None:
            self.readers[name].drop([segment], "nobody knows this reason")
            self.dropped[name]["other"] += ROWS
            self._left(name, segment)

    def _hold(self, name: str) -> None:
        if name in self.lossy:  # a copy is held from the start
            return
        segment = self._pick(self.taken[name])
        if segment is not None:
            self.readers[name].hold([segment])
            self.held[name] += ROWS
            self._had(name, segment.header)

    def _settle(self, name: str) -> None:
        if name in self.lossy:  # its rows are settled when a copy is released or dropped
            return
        consumed = int(self.rng.integers(self.held[name] + 1))
        dropped = int(self.rng.integers(self.held[name] - consumed + 1))
        self.readers[name].settle(consumed=consumed, dropped={"evicted_unused": dropped})
        self.held[name] -= consumed + dropped
        self.consumed[name] += consumed
        if dropped:
            self.dropped[name]["evicted_unused"] += dropped

    def _advance(self, name: str) -> None:
        self.version += 1
        self.readers[self.pace].advance(self.version)

    def _feedback(self, name: str) -> None:
        for writer in self.writers:
            writer.feedback()
