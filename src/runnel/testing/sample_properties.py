"""Properties of a sample stream (the contract is `SampleWriter` and `SampleReader` in core/contracts/samples.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from runnel.core.contracts.samples import SampleWriter
from runnel.core.errors import DataError
from runnel.core.records import Batch, FieldSpec, Segment, Slot, StreamSpec
from runnel.flow.staleness import LagRule, ReplayRatioRule
from runnel.testing.expect import equal, same_arrays, true
from runnel.testing.sample_account import MakeSamples, SampleStream, every_row_is_accounted_for_at_every_moment

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.uint8)
ROWS = 3


def spec_of(
    *,
    fields: Mapping[str, FieldSpec] | None = None,
    sizes: Mapping[str, int] | None = None,
    variable: tuple[str, ...] = (),
    capacity: int = 4,
    readers: tuple[str, ...] = ("trainer",),
    lossy: tuple[str, ...] = (),
    num_writers: int = 1,
    feedback: Mapping[str, FieldSpec] | None = None,
    device: str = "cpu",
) -> StreamSpec:
    """A small stream: three rows in each segment, with a number `x` for each row."""
    return StreamSpec(
        "check",
        {"x": FieldSpec(("B",))} if fields is None else fields,
        {"B": ROWS} if sizes is None else sizes,
        variable=variable,
        capacity=capacity,
        readers=readers,
        lossy_readers=lossy,
        num_writers=num_writers,
        feedback=feedback or {},
        device=device,
    )


def write(writer: SampleWriter, value: float, *, version: int = 0) -> Slot:
    """Reserve, fill with `value`, commit."""
    slot = writer.reserve()
    if slot is None:
        raise AssertionError("a stream with room refused to reserve a segment")
    fill(slot, value, version)
    writer.commit(slot, num_steps=10)
    return slot


def fill(slot: Slot, value: float, version: int = 0) -> None:
    """Give every array of `slot` the value, and its header the version."""
    for x in slot.arrays.values():
        x.fill_(value)
    slot.header.version_min = slot.header.version_max = version


def values(segments: Sequence[Segment]) -> list[float]:
    """The value that each segment was filled with."""
    return [float(s.arrays["x"][0]) for s in segments]


# ------------------------------------------------------------------------------------------------------------ contents
def rows_come_out_as_they_went_in(make: MakeSamples) -> None:
    """Every type and shape arrives unchanged; variable dims are cut to the used size."""
    fields = {str(d).removeprefix("torch."): FieldSpec(("B", 2), d) for d in DTYPES}
    fields |= {"flag": FieldSpec(("B", "F"), torch.bool), "per_time": FieldSpec(("F", 5, "B")), "single": FieldSpec((1,))}
    spec = spec_of(fields=fields, sizes={"B": ROWS, "F": 7}, variable=("F",), capacity=2)
    stream, rng = make(spec, LagRule(lag=1, batch=1, exact=True)), np.random.default_rng(0)
    for used in (4, 0):
        slot = stream.writer(0).reserve()
        true(slot is not None, "an empty stream refused to reserve a segment")
        assert slot is not None
        equal({k: tuple(v.shape) for k, v in slot.arrays.items()}, {k: spec.shape(k) for k in fields}, "shapes of a slot")
        for x in slot.arrays.values():
            x.copy_(torch.from_numpy(rng.integers(0, 2 if x.dtype == torch.bool else 100, tuple(x.shape))))
        wanted = slot.arrays.map(torch.clone)
        wanted["flag"], wanted["per_time"] = wanted["flag"][:, :used], wanted["per_time"][:used]
        slot.header.used, slot.header.group_id, slot.header.task_id, slot.header.agent = {"F": used}, 8, 9, 2
        stream.writer(0).commit(slot, num_steps=used)
        (segment,) = stream.reader("trainer").take(1)
        same_arrays(segment.arrays, wanted, f"a segment that uses {used} of 7")
        head = segment.header
        equal((head.used, head.num_steps, head.group_id, head.task_id, head.agent), ({"F": used}, used, 8, 9, 2), "header")
        stream.reader("trainer").release([segment])


def reads_are_ordered_by_sequence(make: MakeSamples) -> None:
    """Segments are read in the order of their numbers, in whatever order they were committed."""
    for exact in (True, False):
        stream = make(spec_of(num_writers=2), LagRule(lag=3, batch=1, exact=exact))
        first, second = stream.writer(0).reserve(), stream.writer(1).reserve()
        if first is None or second is None:
            raise AssertionError("a stream with room refused to reserve a segment")
        equal((first.header.sequence, second.header.sequence), (0, 1), "sequence numbers")
        fill(second, 1.0)
        stream.writer(1).commit(second, num_steps=1)
        if exact:
            equal(stream.reader("trainer").available(), 0, "segments to read while the first is missing")
            equal(stream.reader("trainer").take(1), [], "take while the first is missing")
        fill(first, 0.0)
        stream.writer(0).commit(first, num_steps=1)
        equal(stream.reader("trainer").take(3), [], "take of more than there is")
        equal(values(stream.reader("trainer").take(2)), [0.0, 1.0], "the order of reading")


def full_stream_pushes_back(make: MakeSamples) -> None:
    """`reserve` returns None when no slot is free, and a slot again after a release."""
    stream = make(spec_of(capacity=2), LagRule(lag=9, batch=1, exact=True))
    writer, reader = stream.writer(0), stream.reader("trainer")
    write(writer, 0.0)
    write(writer, 1.0)
    equal(writer.reserve(), None, "reserve on a full stream")
    taken = reader.take(1)
    equal(writer.reserve(), None, "reserve while the reader still uses the segment")
    reader.release(taken)
    write(writer, 2.0)
    equal(writer.reserve(), None, "reserve on a stream that is full again")
    equal(values(reader.take(2)), [1.0, 2.0], "what is read after the push-back")


# ----------------------------------------------------------------------------------------------------------- staleness
def exact_batch_k_is_made_by_version_k_minus_lag(make: MakeSamples) -> None:
    """Several writers take turns by number, and each segment names the version that must make it."""
    for lag in (0, 1, 2):
        batch, policy = 4, LagRule(lag=lag, batch=4, exact=True)
        stream = make(spec_of(num_writers=2, capacity=batch * (lag + 1)), policy)
        writers, reader = [stream.writer(i) for i in range(2)], stream.reader("trainer")
        order = np.random.default_rng(lag)
        for version in range(6):
            reader.advance(version)
            _fill_up(writers, order)
            equal(reader.available(), batch * (lag + 1), f"segments admitted at version {version} with lag {lag}")
            for n, s in enumerate(reader.take(batch)):
                equal(s.header.sequence, version * batch + n, "sequence")
                equal(s.header.writer, s.header.sequence % 2, "whose turn it was")
                equal(s.header.required_version, max(0, version - lag), f"version that must make batch {version}")
                reader.release([s])


def _fill_up(writers: Sequence[SampleWriter], order: np.random.Generator) -> None:
    """Let the writers write in a random order until none of them may."""
    blocked: set[int] = set()
    while len(blocked) < len(writers):
        i = int(order.integers(len(writers)))
        slot = writers[i].reserve()
        if slot is None:
            blocked.add(i)
            continue
        fill(slot, float(slot.header.sequence), max(0, slot.header.required_version))
        writers[i].commit(slot, num_steps=1)


def a_fast_writer_leaves_room_for_a_slow_one(make: MakeSamples) -> None:
    """In exact order, a writer far ahead must not fill the stream: the segment that is read next would find no slot."""
    stream = make(spec_of(num_writers=2, capacity=4), ReplayRatioRule(ratio=0.1, min_fill=1000, segment_steps=10))
    while stream.writer(1).reserve() is not None:
        continue
    slot = stream.writer(0).reserve()
    true(slot is not None, "writer 1 reserved every slot, and the next segment to be read is writer 0's: nothing can move")


def window_admission_is_bounded(make: MakeSamples) -> None:
    """With n batches consumed, at most (lag + n + 1) * batch segments are accepted or being written."""
    lag, batch = 2, 2
    stream = make(spec_of(capacity=99), LagRule(lag=lag, batch=batch, exact=False))
    writer, reader, started = stream.writer(0), stream.reader("trainer"), 0
    for n in range(5):
        reader.advance(n)
        while (slot := writer.reserve()) is not None:
            started += 1
            fill(slot, 0.0, n)
            writer.commit(slot, num_steps=1)
        equal(started, (lag + n + 1) * batch, f"segments started at version {n}")
        reader.release(reader.take(batch))


def window_limits_what_is_in_the_making(make: MakeSamples) -> None:
    """In every mode, at most `max_concurrent` segments are being written."""
    for exact in (False, True):
        stream = make(spec_of(num_writers=1, capacity=9), LagRule(lag=3, batch=2, exact=exact, max_concurrent=2))
        slots = [stream.writer(0).reserve() for _ in range(3)]
        equal([s is None for s in slots], [False, False, True], f"reserve with max_concurrent 2 (exact={exact})")
        assert slots[0] is not None
        stream.writer(0).commit(slots[0], num_steps=1)
        true(stream.writer(0).reserve() is not None, "a commit makes room for the next")


def stale_segments_are_dropped_before_a_batch(make: MakeSamples) -> None:
    """Segments older than the lag are counted as `stale`, and their room goes to new segments."""
    stream = make(spec_of(capacity=4), LagRule(lag=1, batch=2, exact=False))
    writer, reader = stream.writer(0), stream.reader("trainer")
    for version in (0, 0, 1):
        write(writer, float(version), version=version)
    reader.advance(2)
    equal(reader.available(), 1, "segments within the lag")
    equal(reader.accounting().dropped, {"stale": 2 * ROWS}, "rows dropped")
    equal(reader.take(2), [], "a batch of what is left")
    write(writer, 2.0, version=2)
    equal(values(reader.take(2)), [1.0, 2.0], "the batch")
    made_by_nobody = make(spec_of(), LagRule(lag=0, batch=1, exact=False))
    write(made_by_nobody.writer(0), 5.0, version=-1)
    made_by_nobody.reader("trainer").advance(1)
    equal(made_by_nobody.reader("trainer").available(), 1, "demonstrations, which never grow stale")


# ----------------------------------------------------------------------------------------------------- cancel, feedback
def cancelled_sequence_is_issued_again(make: MakeSamples) -> None:
    """Exact order has no holes: the number of a cancelled segment is issued again, with new sample ids."""
    stream = make(spec_of(), LagRule(lag=2, batch=1, exact=True))
    writer, reader = stream.writer(0), stream.reader("trainer")
    slot = writer.reserve()
    assert slot is not None
    writer.cancel(slot, "env_failed: it raised")
    again = write(writer, 4.0)
    equal((again.header.sequence, again.header.required_version), (0, 0), "sequence and version after a cancel")
    true(again.header.sample_id != slot.header.sample_id, "cancelled rows and new rows have the same sample ids")
    equal(reader.accounting().cancelled, {"env_failed": ROWS}, "cancelled rows by reason")
    equal(values(reader.take(1)), [4.0], "what is read")


def a_lost_writer_is_cancelled(make: MakeSamples) -> None:
    """Segments that a dead writer had reserved are counted as `worker_lost`; those that it had committed are still read."""
    stream = make(spec_of(num_writers=2), LagRule(lag=1, batch=2, exact=True))
    write(stream.writer(0), 0.0)
    for i in (0, 1):
        true(stream.writer(i).reserve() is not None, "reserve")
    equal(stream.cancel_writer(0, "worker_lost"), ROWS, "rows that were lost")
    equal(stream.cancel_writer(0, "worker_lost"), 0, "rows that are lost twice")
    account = stream.reader("trainer").accounting()
    equal((account.cancelled, account.in_flight, account.balance), ({"worker_lost": ROWS}, 2 * ROWS, 0), "the account")
    equal(write(stream.writer(0), 2.0).header.sequence, 2, "the sequence that the new writer 0 goes on with")


def feedback_flows_back_in_order_and_frees_the_slot(make: MakeSamples) -> None:
    """Each writer gets the feedback about its own segments, oldest first. Until it has, their slots are not free."""
    feedback = {"priority": FieldSpec(("B",)), "index": FieldSpec(("B",), torch.int64)}
    stream = make(spec_of(num_writers=2, feedback=feedback, capacity=4), LagRule(lag=1, batch=4, exact=True))
    writers, reader = [stream.writer(i) for i in range(2)], stream.reader("trainer")
    ids = [write(writers[k % 2], float(k)).header.sample_id for k in range(4)]
    taken = reader.take(4)
    said = [{"priority": torch.full((ROWS,), float(k)), "index": torch.full((ROWS,), k)} for k in range(4)]
    reader.release(taken[2:], feedback=said[2:])
    reader.release(taken[:2], feedback=said[:2])
    reader.advance(1)
    equal(writers[0].reserve(), None, "reserve before the feedback is collected")
    for i, writer in enumerate(writers):
        found = writer.feedback()
        equal([f.sample_id for f in found], ids[i::2], f"segments that writer {i} heard about")
        for f, k in zip(found, (i, i + 2), strict=True):
            same_arrays(f.values, said[k], "feedback")
        equal(writer.feedback(), [], "feedback that was collected already")
    write(writers[0], 9.0)
    equal(reader.accounting().balance, 0, "the balance")


def readers_have_their_own_cursor(make: MakeSamples) -> None:
    """Each named reader reads every segment and has its own account. A slot is free when all readers have released it."""
    stream = make(spec_of(readers=("a", "b"), capacity=2), LagRule(lag=9, batch=1, exact=True))
    writer, a, b = stream.writer(0), stream.reader("a"), stream.reader("b")
    write(writer, 0.0)
    write(writer, 1.0)
    a.release(a.take(2))
    equal((a.available(), b.available()), (0, 2), "segments that a and b can take")
    equal(writer.reserve(), None, "reserve while b has read nothing")
    b.drop(b.take(1), "other")
    equal((a.accounting().consumed, a.accounting().in_flight), (2 * ROWS, 0), "the account of a")
    equal((b.accounting().dropped, b.accounting().in_flight), ({"other": ROWS}, ROWS), "the account of b")
    write(writer, 2.0)
    equal(values(a.take(1)), [2.0], "what a reads next")
    equal(values(b.take(2)), [1.0, 2.0], "what b reads next")


def one_reader_paces(make: MakeSamples) -> None:
    """Admission counts what the first reader consumed, staleness is its own, and only it advances and sends feedback."""
    stream = make(
        spec_of(readers=("a", "b"), capacity=9, feedback={"p": FieldSpec(("B",))}), LagRule(lag=0, batch=2, exact=False)
    )
    writer, a, b = stream.writer(0), stream.reader("a"), stream.reader("b")
    for value in (0.0, 1.0):
        write(writer, value)
    equal(writer.reserve(), None, "reserve when a batch is there and nothing is consumed")
    b.release(b.take(2))
    equal(writer.reserve(), None, "reserve when only b, which does not pace, has consumed")
    a.release(a.take(1))
    a.drop(a.take(1), "other")
    a.advance(1)
    for value in (2.0, 3.0, 4.0):
        write(writer, value, version=0)
    equal(writer.reserve(), None, "reserve at version 1, with one segment consumed and three waiting")
    equal((a.available(), b.available()), (0, 3), "segments of version 0 that a, and b, can take at version 1")
    for does, error in (("advance", lambda: b.advance(2)), ("feedback", lambda: b.release(b.take(1), feedback=[{}]))):
        true(_is_refused(error), f"{does} of a reader that does not pace was accepted")
    equal([x.accounting().balance for x in (a, b)], [0, 0], "the balances")


def _is_refused(does: Callable[[], None]) -> bool:
    try:
        does()
    except DataError:
        return True
    return False


def a_lossless_reader_holds_writers_up_and_is_named(make: MakeSamples) -> None:
    """The slots that a slow lossless reader has not released are not free, and the writer can say who keeps them."""
    stream = make(spec_of(readers=("a", "slow"), capacity=2), LagRule(lag=9, batch=1, exact=True))
    writer, a, slow = stream.writer(0), stream.reader("a"), stream.reader("slow")
    write(writer, 0.0)
    write(writer, 1.0)
    equal((writer.reserve(), writer.held_up_by()), (None, []), "a full stream that waits for the pacing reader")
    a.release(a.take(2))
    equal((writer.reserve(), writer.held_up_by()), (None, ["slow"]), "a full stream that waits for a lossless reader")
    slow.release(slow.take(2))
    true(writer.reserve() is not None, "reserve after the slow reader has released")


def a_lossy_reader_never_holds_writers_up(make: MakeSamples) -> None:
    """What a lossy reader has not copied in time is dropped for it as `skipped`. What it has copied it keeps."""
    for exact in (True, False):
        stream = make(spec_of(readers=("a",), lossy=("look",), capacity=2), LagRule(lag=9, batch=1, exact=exact))
        writer, a, look = stream.writer(0), stream.reader("a"), stream.reader("look")
        kept: list[Segment] = []
        for k in range(6):
            write(writer, float(k))
            if k in (1, 4):
                kept += look.take(9)
            a.release(a.take(1))
            a.advance(k + 1)
        equal(values(kept), [1.0, 4.0], f"segments that the lossy reader copied (exact={exact})")
        account = look.accounting()
        equal((account.dropped, account.in_flight, account.balance), ({"skipped": 4 * ROWS}, 2 * ROWS, 0), "its account")
        equal((look.held(), a.accounting().consumed), (2 * ROWS, 6 * ROWS), "held by the lossy reader, consumed by the other")
        look.release(kept[:1])
        look.drop(kept[1:], "other")
        account = look.accounting()
        equal((account.consumed, account.dropped["other"], account.in_flight), (ROWS, ROWS, 0), "its account at the end")


# ---------------------------------------------------------------------------------------------------------- checkpoint
def snapshot_mid_flight_goes_on_identically(make: MakeSamples) -> None:
    """Reserved, committed and released segments are restored; readers, writers and accounts go on identically."""
    feedback = {"priority": FieldSpec(("B",))}
    spec = spec_of(num_writers=2, capacity=6, feedback=feedback)
    policy = LagRule(lag=2, batch=2, exact=True)
    stream = make(spec, policy)
    for k in range(4):
        write(stream.writer(k % 2), float(k))
    first = stream.reader("trainer").take(2)
    stream.reader("trainer").release(first, feedback=[{"priority": torch.full((ROWS,), 7.0 + k)} for k in range(2)])
    stream.reader("trainer").advance(1)
    reserved = stream.writer(0).reserve()
    assert reserved is not None
    state, twin = stream.snapshot(), make(spec, policy)
    twin.restore(state)
    found = [_go_on(s, reserved.index) for s in (stream, twin)]
    equal(found[1], found[0], "what a restored stream does next")


def _go_on(stream: SampleStream, index: int) -> list[object]:
    writer, other, reader = stream.writer(0), stream.writer(1), stream.reader("trainer")
    slot = writer.reclaim(index)
    log: list[object] = [slot.header, [(f.sample_id, f.values["priority"].tolist()) for f in writer.feedback()]]
    fill(slot, 4.0)
    writer.commit(slot, num_steps=3)
    log.append([(f.sample_id, f.values["priority"].tolist()) for f in other.feedback()])
    log.append(write(other, 5.0).header)
    taken = reader.take(4)
    log += [values(taken), [s.header for s in taken], reader.accounting()]
    reader.release(taken[:2])
    reader.drop(taken[2:], "stale")
    return [*log, reader.accounting(), stream.reader("trainer").accounting().balance]


def a_slot_is_reused_not_reallocated(make: MakeSamples) -> None:
    """A segment is a view of the stream's memory: a slot has the same address each time."""
    stream = make(spec_of(capacity=1), LagRule(lag=9, batch=1, exact=True))
    addresses = set()
    for k in range(3):
        write(stream.writer(0), float(k))
        segments = stream.reader("trainer").take(1)
        addresses.add(Batch(segments[0].arrays)["x"].data_ptr())
        stream.reader("trainer").release(segments)
    equal(len(addresses), 1, "memory of the one slot")


SAMPLES: dict[str, Callable[[MakeSamples], None]] = {
    f.__name__: f
    for f in (
        rows_come_out_as_they_went_in,
        reads_are_ordered_by_sequence,
        full_stream_pushes_back,
        exact_batch_k_is_made_by_version_k_minus_lag,
        a_fast_writer_leaves_room_for_a_slow_one,
        window_admission_is_bounded,
        window_limits_what_is_in_the_making,
        stale_segments_are_dropped_before_a_batch,
        cancelled_sequence_is_issued_again,
        a_lost_writer_is_cancelled,
        feedback_flows_back_in_order_and_frees_the_slot,
        readers_have_their_own_cursor,
        one_reader_paces,
        a_lossless_reader_holds_writers_up_and_is_named,
        a_lossy_reader_never_holds_writers_up,
        snapshot_mid_flight_goes_on_identically,
        a_slot_is_reused_not_reallocated,
        every_row_is_accounted_for_at_every_moment,
    )
}
