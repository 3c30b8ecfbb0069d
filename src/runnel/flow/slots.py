"""The sample stream: a table of slots, its writers and its readers.

All transports share this implementation. A transport only gives the memory, the lock between processes (`lock`) and the call
that wakes waiting workers (`ring`).

Who waits for whom: a writer that gets None from `reserve` waits for a reader to release or for the learner to advance; a
reader that gets an empty `take` waits for writers to commit. Both wake each other through `ring`.

A slot goes FREE -> RESERVED (a writer fills it) -> FINISHED (readers may take it) -> FREE. If the reader that paces left
feedback, the slot is in FEEDBACK before FREE, until the writer has collected it.

A stream has one or several readers (`StreamSpec.readers`). The first one paces: admission counts what it has consumed. A slot
is free when all readers have released it. Lossy readers are not waited for: they copy a segment out without holding its slot,
and a segment that they did not copy in time is dropped for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ipaddress import IPv4Address
from typing import Any

import numpy as np
import torch
from torch import Tensor

from runnel.core.accounting import Accounting
from runnel.core.contracts.samples import Feedback
from runnel.core.errors import DataError
from runnel.core.records import Header, Segment, Slot, StreamSpec, check_used, trim
from runnel.core.sharding.batch_split import cut, owners_of
from runnel.core.state import State
from runnel.flow.slot_memory import (
    ANSWERED,
    CANCELLED,
    CONSUMED,
    CONSUMED_SEGMENTS,
    CURSOR,
    DISPATCHED,
    DROPPED,
    EPOCH,
    FEEDBACK,
    FEW,
    FINISHED,
    FREE,
    GIVEN,
    GLOBALS,
    HEADER,
    HELD,
    NEXT,
    NUMBERS,
    PACE,
    PER_READER,
    REASONS,
    REASONS_BEFORE,
    RELEASED,
    RESERVED,
    SAMPLE_ID,
    SHARED,
    STEPS,
    TAKEN,
    UNREAD,
    VERSION,
    WRITER,
    SlotMemory,
    reason_index,
    rows_by_reason,
    with_all_reasons,
)
from runnel.flow.staleness import AdmissionRule, Counters


class SlotTable:
    """The shared state of one sample stream, and all its transitions.

    Numbers are read as lists: for the few slots of a stream this takes a fraction of a numpy expression's time.
    """

    def __init__(
        self,
        spec: StreamSpec,
        policy: AdmissionRule,
        memory: SlotMemory,
        *,
        lock: AbstractContextManager[Any] | None = None,
        ring: Callable[[], None] | None = None,
    ) -> None:
        self.spec, self.policy, self.memory = spec, policy, memory
        self.lock: AbstractContextManager[Any] = lock if lock is not None else nullcontext()
        self.ring = ring if ring is not None else lambda: None
        c = memory.control
        num_readers, w = len(spec.all_readers), spec.num_writers
        self.num_lossless = len(spec.readers)
        """Readers from this index on are lossy."""
        self.globals = c[:GLOBALS]
        offset = GLOBALS
        self.readers = c[offset : offset + PER_READER * num_readers].reshape(num_readers, PER_READER)
        offset += PER_READER * num_readers
        self.writer_count = c[offset : offset + w]
        offset += w
        self.meeting = c[-1:]
        """Rendezvous of the ranks that share the stream: IPv4 address and port in one number. Not part of a checkpoint."""
        slots = c[offset:-1].reshape(spec.capacity, -1)
        self.state = slots[:, 0]
        self.headers = slots[:, 1 : 1 + len(HEADER)]
        self.used = slots[:, 1 + len(HEADER) : 1 + len(HEADER) + len(spec.variable)]
        self.read = slots[:, 1 + len(HEADER) + len(spec.variable) :]

    # ------------------------------------------------------------------------------------------------------- writing
    def reserve(self, writer: int) -> Slot | None:
        with self.lock:
            states = self._states()
            sequence = self._next_sequence(writer, states) if FREE in states else None
            if sequence is None:
                return None
            # If it is free, use the slot of the segment's number: the segments of a batch then lie side by side in memory.
            place = sequence % self.spec.capacity
            index = place if states[place] == FREE else states.index(FREE)
            rows, count = self.spec.num_rows, int(self.writer_count[writer])
            self.writer_count[writer] += 1
            # The sample id is unique without a counter that all writers share, and does not depend on timing.
            header = Header(
                sequence=sequence,
                sample_id=(count * self.spec.num_writers + writer) * rows,
                epoch=int(self.globals[EPOCH]),
                writer=writer,
                required_version=self.policy.version_for(sequence),
            )
            self._put_header(index, header)
            self.state[index], self.read[index] = RESERVED, UNREAD
            self.globals[DISPATCHED] += rows
            return Slot(index, self.spec, header, self.memory.arrays[index])

    def _states(self) -> list[int] | bytes:
        """The state of every slot: a list if there are few slots, bytes if there are many (whichever is faster)."""
        return self.state.tolist() if self.spec.capacity <= FEW else self.state.astype(np.uint8).tobytes()

    def _taken(self, writer: int, states: list[int] | bytes) -> set[int]:
        """Numbers of the segments that have a slot; if there are many slots and writers take turns, only those of the writer
        itself, because no other has its numbers."""
        if isinstance(states, list) or not self.policy.turns:
            return {sequence for sequence, state in zip(self.headers[:, 0].tolist(), states, strict=True) if state != FREE}
        mine = np.flatnonzero(self.headers[:, WRITER] == writer)
        return set(self.headers[mine[self.state[mine] != FREE], 0].tolist())

    def _next_sequence(self, writer: int, states: list[int] | bytes) -> int | None:
        """The number of the next segment of `writer`, if the policy admits it.

        Exact: writers take turns by number; with a policy without turns, each takes the lowest open number.
        """
        version, running = int(self.globals[VERSION]), states.count(RESERVED)
        if self.policy.exact:
            taken = self._taken(writer, states)
            stride, cursor = self.spec.num_writers, min(self.readers[: self.num_lossless, CURSOR].tolist())
            if not self.policy.turns:
                stride = 1
            sequence: int = cursor + (writer - cursor) % stride
            while sequence in taken:
                sequence += stride
            # No writer may run so far ahead that an earlier segment finds no slot: the reader would wait for it for ever.
            has_room = sequence - cursor < self.spec.capacity
            return sequence if has_room and self.policy.admits_sequence(sequence, version, running) else None
        accepted = int(self.globals[CONSUMED_SEGMENTS]) + self._waiting_for_pace(states)
        if self.policy.admit(Counters(version, running, accepted)) < 1:
            return None
        sequence = int(self.globals[NEXT])
        self.globals[NEXT] += 1
        return sequence

    def _waiting_for_pace(self, states: list[int] | bytes) -> int:
        """Finished segments that the pacing reader has not released."""
        if len(self.spec.all_readers) == 1:  # then no other reader can keep a slot that the pacing one has released
            return states.count(FINISHED)
        marks = self.read[:, PACE].tolist()
        return sum(state == FINISHED and mark < RELEASED for state, mark in zip(states, marks, strict=True))

    def held_up_by(self) -> list[str]:
        """Readers that keep slots which the pacing reader has released, so that writers may have to wait for them."""
        if len(self.spec.readers) == 1:
            return []
        with self.lock:
            marks = self.read[(self.state == FINISHED) & (self.read[:, PACE] >= RELEASED)].tolist()
        return [name for i, name in enumerate(self.spec.readers) if any(row[i] < RELEASED for row in marks)]

    def commit(self, slot: Slot, num_steps: int) -> None:
        header = slot.header
        header.num_steps = num_steps
        check_used(self.spec, header.used)
        with self.lock:
            assert self.state[slot.index] == RESERVED, "only a reserved slot can be committed"
            self._put_header(slot.index, header)
            self.state[slot.index] = FINISHED
            self.globals[STEPS] += num_steps
        self.ring()

    def cancel(self, slot: Slot, reason: str) -> None:
        with self.lock:
            assert self.state[slot.index] == RESERVED, "only a reserved slot can be cancelled"
            self.state[slot.index] = FREE
            self.globals[CANCELLED + reason_index(reason)] += self.spec.num_rows
        self.ring()

    def give_back(self, slot: Slot) -> None:
        """Undo a reservation: the segment was reserved but never begun."""
        header = slot.header
        with self.lock:
            assert self.state[slot.index] == RESERVED, "only a reserved slot can be given back"
            self.state[slot.index] = FREE
            self.globals[DISPATCHED] -= self.spec.num_rows
            # Counters go back only if nothing was reserved after this segment; else its number stays unused.
            number = header.sample_id // self.spec.num_rows // self.spec.num_writers
            if self.writer_count[header.writer] == number + 1:
                self.writer_count[header.writer] = number
            if not self.policy.exact and self.globals[NEXT] == header.sequence + 1:
                self.globals[NEXT] = header.sequence
        self.ring()

    def cancel_writer(self, writer: int, reason: str) -> int:
        """Cancel the reserved slots of a writer that is gone; returns their number of rows."""
        with self.lock:
            lost = np.flatnonzero((self.state == RESERVED) & (self.headers[:, HEADER.index("writer")] == writer))
            self.state[lost] = FREE
            self.globals[CANCELLED + reason_index(reason)] += self.spec.num_rows * len(lost)
            self._recount()
        self.ring()
        return self.spec.num_rows * len(lost)

    def _recount(self) -> None:
        """Correct the count of dispatched rows after a writer was killed inside `reserve` or `cancel`."""
        # The writer may have moved a slot without counting it, or counted without moving. The states of the slots are right.
        account = self._account(0)
        told = account.consumed + sum(account.dropped.values()) + sum(account.cancelled.values()) + account.in_flight
        if abs(account.dispatched - told) <= self.spec.num_rows:
            self.globals[DISPATCHED] = told

    def collect_feedback(self, writer: int) -> list[Feedback]:
        if not self.spec.feedback:
            return []
        with self.lock:
            mine = [i for i in self._where(FEEDBACK) if self.headers[i, WRITER] == writer]
            out = []
            for i in mine:
                values = {k: v.clone() for k, v in self.memory.feedback[i].items()}
                out.append(Feedback(int(self.headers[i, SAMPLE_ID]), values))
                self.state[i] = FREE
            return out

    def _where(self, state: int) -> list[int]:
        """Indices of the slots in `state`, in sequence order."""
        found = [i for i, now in enumerate(self.state.tolist()) if now == state]
        return sorted(found, key=self.headers[:, 0].tolist().__getitem__) if len(found) > 1 else found

    # ------------------------------------------------------------------------------------------------------- reading
    def ready(self, reader: int) -> list[int]:
        """Slots that `reader` may take, in sequence order. Segments that are too old to train on are dropped first for the
        pacing reader; other readers get them."""
        version, keep = int(self.globals[VERSION]), []
        for i in self._where(FINISHED):
            if self.read[i, reader] != UNREAD:
                continue
            header = self._get_header(i)
            if reader == PACE and header.version_min >= 0 and self.policy.evict(header, version):
                self._finish_read(i, reader, DROPPED + reason_index("stale"))
            else:
                keep.append((header.sequence, i))
        if not self.policy.exact or reader >= self.num_lossless:  # a lossy reader does not wait for what it missed
            return [i for _, i in keep]
        cursor = int(self.readers[reader, CURSOR])
        run: list[int] = []
        for sequence, i in keep:
            if sequence != cursor + len(run):
                break
            run.append(i)
        return run

    def take(self, reader: int, num: int, ranks: int = 1) -> list[Segment]:
        with self.lock:
            indices = self.ready(reader)[:num]
            if len(indices) < num:
                return []
            self.read[indices, reader] = TAKEN if ranks == 1 else self._rank_marks(indices, ranks)
            self.readers[reader, CURSOR] += num
            segments = [self._segment(i) for i in indices]
        if ranks > 1:  # the other ranks wait for these marks
            self.ring()
        return segments

    def _rank_marks(self, indices: Sequence[int], ranks: int) -> list[int]:
        """The marks of segments that several ranks take together, which say whose part each is."""
        if len(indices) % ranks:
            return [SHARED] * len(indices)
        return [GIVEN - owner for owner in owners_of([self._get_header(i) for i in indices], self.spec, ranks)]

    def copy(self, reader: int, num: int) -> list[Segment]:
        """Copies of up to `num` segments for a lossy reader. Their rows count as held; their slots are released for it."""
        with self.lock:
            found = [(i, self._get_header(i)) for i in self.ready(reader)[:num]]
        # The copy is made without the lock and without a mark, so a reader that stands still in the middle holds nothing back.
        # Then a look whether the slot still has the segment tells whether the copy is whole.
        copies = [trim(self.spec, self.memory.arrays[i], header.used).map(torch.clone) for i, header in found]
        segments = []
        with self.lock:
            for (i, header), arrays in zip(found, copies, strict=True):
                same = self.state[i] == FINISHED and self.headers[i, SAMPLE_ID] == header.sample_id
                if same and self.read[i, reader] == UNREAD:
                    self._finish_read(i, reader, HELD)
                    self.readers[reader, CURSOR] = header.sequence + 1
                    segments.append(Segment(i, self.spec, header, arrays))
        self.ring()
        return segments

    def given(self, reader: int, rank: int, ranks: int) -> list[Segment]:
        """The part of `rank` in the segments that `take` has marked."""
        with self.lock:
            marks = self.read[:, reader].tolist()
            mine = [i for i in self._where(FINISHED) if marks[i] in (SHARED, GIVEN - rank)]
            return [cut(s, rank, ranks) if marks[s.index] == SHARED else s for s in map(self._segment, mine)]

    def answer(self, segments: Sequence[Segment], feedback: Sequence[Mapping[str, Tensor]], rank: int) -> None:
        """Write a rank's feedback beside the segments, at the rows that the rank had."""
        for segment, values in zip(segments, feedback, strict=True):
            num, is_part = segment.num_rows, segment.num_rows < self.spec.num_rows
            for key, value in values.items():
                place = self.memory.feedback[segment.index][key]
                axis = self.spec.feedback[key].dims.index(self.spec.rows) if is_part else 0
                (place.narrow(axis, rank * num, num) if is_part else place).copy_(value)

    def available(self, reader: int) -> int:
        with self.lock:
            return len(self.ready(reader))

    def finish(
        self,
        reader: int,
        segments: Sequence[Segment],
        *,
        outcome: int,
        feedback: Sequence[Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Mark `segments` as read; `outcome` is the column of the reader's account to which their rows are added."""
        with self.lock:
            for n, segment in enumerate(segments):
                assert UNREAD != self.read[segment.index, reader] < RELEASED, "only a taken segment can be released"
                if feedback is not None:
                    for key, value in feedback[n].items():
                        self.memory.feedback[segment.index][key].copy_(value)
                self._finish_read(segment.index, reader, outcome, has_feedback=feedback is not None)
        self.ring()

    def _finish_read(self, index: int, reader: int, outcome: int, has_feedback: bool = False) -> None:
        self.readers[reader, outcome] += self.spec.num_rows
        self.read[index, reader] = ANSWERED if has_feedback else RELEASED
        if reader == PACE:
            self.globals[CONSUMED_SEGMENTS] += int(outcome in (CONSUMED, HELD))
        marks = self.read[index].tolist()
        if min(marks[: self.num_lossless]) >= RELEASED:
            for lossy in range(self.num_lossless, len(marks)):
                if marks[lossy] == UNREAD:
                    self.read[index, lossy] = RELEASED
                    self.readers[lossy, DROPPED + reason_index("skipped")] += self.spec.num_rows
            self.state[index] = FEEDBACK if ANSWERED in marks else FREE

    def held(self, reader: int) -> int:
        """Rows that `reader` holds after it has given their slots back."""
        return int(self.readers[reader, HELD])

    def drop_held(self, reader: int, reason: str) -> int:
        """Count the held rows of a reader that is gone as dropped; returns their number."""
        with self.lock:
            rows = int(self.readers[reader, HELD])
            self.readers[reader, DROPPED + reason_index(reason)] += rows
            self.readers[reader, HELD] = 0
        return rows

    def take_back(self, reader: int, consumed_before: int) -> int:
        """The worker behind `reader` was lost and goes on from an earlier state, while the stream goes on from here.

        Segments that it had taken are given out again. Rows that it has consumed since that state (`consumed_before`) left
        nothing behind: they count as `lost_with_trainer`. Returns their number.
        """
        with self.lock:
            taken = self._taken_by(reader)
            self.read[taken, reader] = UNREAD
            account = self.readers[reader]
            account[CURSOR] -= len(taken)
            lost = int(account[CONSUMED]) - consumed_before
            account[CONSUMED] -= lost
            account[DROPPED + reason_index("lost_with_trainer")] += lost
        self.ring()
        return lost

    def taken(self, reader: int) -> list[Segment]:
        """The segments that `reader` has taken and not released."""
        with self.lock:
            return [self._segment(i) for i in self._taken_by(reader)]

    def _taken_by(self, reader: int) -> list[int]:
        marks = self.read[:, reader].tolist()
        return [i for i in self._where(FINISHED) if marks[i] != UNREAD and marks[i] < RELEASED]

    def settle(self, reader: int, consumed: int, dropped: Mapping[str, int]) -> None:
        with self.lock:
            account = self.readers[reader]
            account[CONSUMED] += consumed
            for reason, rows in dropped.items():
                account[DROPPED + reason_index(reason)] += rows
            account[HELD] -= consumed + sum(dropped.values())

    def advance(self, version: int) -> None:
        with self.lock:
            self.globals[VERSION] = version
        self.ring()

    # ---------------------------------------------------------------------------------------------------- accounting
    def accounting(self, reader: int) -> Accounting:
        with self.lock:
            return self._account(reader)

    def _account(self, reader: int) -> Accounting:
        account, counts, states = self.readers[reader].tolist(), self.globals.tolist(), self.state.tolist()
        marks = zip(states, self.read[:, reader].tolist(), strict=True)
        waiting = sum(state == FINISHED and mark < RELEASED for state, mark in marks)
        return Accounting(
            dispatched=counts[DISPATCHED],
            consumed=account[CONSUMED],
            dropped=rows_by_reason(account[DROPPED:]),
            cancelled=rows_by_reason(counts[CANCELLED:]),
            in_flight=(states.count(RESERVED) + waiting) * self.spec.num_rows + account[HELD],
            queued=waiting * self.spec.num_rows,
            steps=counts[STEPS],
        )

    # ---------------------------------------------------------------------------------------------------- checkpoint
    def snapshot(self) -> State:
        """All numbers, and the contents of all slots that are not free. To be called at a barrier, while nothing writes."""
        busy = np.flatnonzero(self.state != FREE).tolist()
        return {
            # Without the last number: the rendezvous of the ranks is of this start only.
            "control": self.memory.control[:-1].copy(),
            "reasons": list(REASONS),
            "arrays": {str(i): {k: v.clone() for k, v in self.memory.arrays[i].items()} for i in busy},
            "feedback": {str(i): {k: v.clone() for k, v in self.memory.feedback[i].items()} for i in busy},
        }

    def restore(self, state: State) -> None:
        reasons = tuple(state.get("reasons", REASONS_BEFORE))
        self.memory.control[:-1] = with_all_reasons(np.asarray(state["control"]), reasons, len(self.spec.all_readers))
        for part, memory in (("arrays", self.memory.arrays), ("feedback", self.memory.feedback)):
            for i, values in state[part].items():
                for key, value in values.items():
                    memory[int(i)][key].copy_(value)

    def set_epoch(self, epoch: int) -> None:
        self.globals[EPOCH] = epoch

    # ------------------------------------------------------------------------------------------------------- headers
    def _put_header(self, index: int, header: Header) -> None:
        self.headers[index] = NUMBERS(header)
        if self.spec.variable:
            self.used[index] = [header.used.get(dim, 0) for dim in self.spec.variable]

    def _get_header(self, index: int) -> Header:
        numbers: dict[str, int] = dict(zip(HEADER, self.headers[index].tolist(), strict=True))
        return Header(**numbers, used=dict(zip(self.spec.variable, self.used[index].tolist(), strict=True)))

    def _segment(self, index: int) -> Segment:
        header = self._get_header(index)
        return Segment(index, self.spec, header, trim(self.spec, self.memory.arrays[index], header.used))

    def slot(self, index: int) -> Slot:
        return Slot(index, self.spec, self._get_header(index), self.memory.arrays[index])


class TableWriter:
    """`SampleWriter` on a slot table."""

    def __init__(self, table: SlotTable, writer: int) -> None:
        self._table, self.index, self.spec = table, writer, table.spec

    def reserve(self) -> Slot | None:
        return self._table.reserve(self.index)

    def commit(self, slot: Slot, *, num_steps: int) -> None:
        self._table.commit(slot, num_steps)

    def cancel(self, slot: Slot, reason: str) -> None:
        self._table.cancel(slot, reason)

    def reclaim(self, index: int) -> Slot:
        assert self._table.state[index] == RESERVED, f"slot {index} of {self.spec.name!r} is not reserved"
        return self._table.slot(index)

    def feedback(self) -> list[Feedback]:
        return self._table.collect_feedback(self.index)

    def version(self) -> int:
        """The learner's version, as last advanced in this stream."""
        return int(self._table.globals[VERSION])

    def held_up_by(self) -> list[str]:
        return self._table.held_up_by()


class TableReader:
    """`SampleReader` and `SharedReader` on a slot table, for a reader that segments wait for."""

    def __init__(self, table: SlotTable, reader: str) -> None:
        self._table, self.spec = table, table.spec
        self._index = table.spec.readers.index(reader)

    def available(self) -> int:
        return self._table.available(self._index)

    def take(self, num_segments: int, *, ranks: int = 1) -> list[Segment]:
        return self._table.take(self._index, num_segments, ranks)

    def taken(self) -> list[Segment]:
        return self._table.taken(self._index)

    def given(self, rank: int, ranks: int) -> list[Segment]:
        return self._table.given(self._index, rank, ranks)

    def answer(self, segments: Sequence[Segment], feedback: Sequence[Mapping[str, Tensor]], *, rank: int) -> None:
        self._table.answer(segments, feedback, rank)

    def version(self) -> int:
        return int(self._table.globals[VERSION])

    def announce(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        # One number, written at once: no rank can read half of an address.
        self._table.meeting[0] = int(IPv4Address(host)) << 16 | int(port)

    def meeting(self) -> str:
        number = int(self._table.meeting[0])
        return f"{IPv4Address(number >> 16)}:{number & 0xFFFF}" if number else ""

    def release(self, segments: Sequence[Segment], *, feedback: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        if feedback is not None:
            self._only_pace("sends feedback")
        self._table.finish(self._index, segments, outcome=CONSUMED, feedback=feedback)

    def drop(self, segments: Sequence[Segment], reason: str) -> None:
        self._table.finish(self._index, segments, outcome=DROPPED + reason_index(reason))

    def hold(self, segments: Sequence[Segment]) -> None:
        self._table.finish(self._index, segments, outcome=HELD)

    def settle(self, *, consumed: int = 0, dropped: Mapping[str, int] | None = None) -> None:
        self._table.settle(self._index, consumed, dropped or {})

    def held(self) -> int:
        return self._table.held(self._index)

    def advance(self, version: int) -> None:
        self._only_pace("tells the writers a version")
        self._table.advance(version)

    def _only_pace(self, does: str) -> None:
        if self._index != PACE:
            name, pace = self.spec.readers[self._index], self.spec.readers[PACE]
            text = f"reader {name!r} {does}, but only {pace!r} may: it paces the writers"
            raise DataError(f"stream {self.spec.name!r}: {text}")

    def accounting(self) -> Accounting:
        return self._table.accounting(self._index)
