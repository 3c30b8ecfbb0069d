"""Properties of a sample stream that several ranks read (`SharedReader`, `RankReader` in core/contracts/samples.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from runnel.core.contracts.samples import RankReader, SampleWriter, SharedReader
from runnel.core.records import FieldSpec, Segment, StreamSpec
from runnel.core.sharding.batch_split import share_of
from runnel.flow.staleness import AdmissionRule, LagRule
from runnel.testing.expect import equal, same_arrays, true
from runnel.testing.sample_properties import ROWS, reserved, spec_of, write

MEETING = "10.1.2.3:4567"


class RankStream(Protocol):
    """The ends of one stream whose reader is a trainer of several ranks."""

    def writer(self, index: int) -> SampleWriter: ...

    def reader(self, name: str) -> SharedReader:
        """The reader of rank 0."""
        ...

    def rank(self, rank: int, ranks: int) -> RankReader:
        """The reader of another rank; asked for once for each rank."""
        ...


MakeRanks = Callable[[StreamSpec, AdmissionRule], RankStream]
OPEN = LagRule(lag=9, batch=1, exact=True)


def _part(end: RankReader, version: int, rank: int, ranks: int) -> list[Segment]:
    """The part that a follower at `version` gets."""
    return end.given(rank, ranks) if end.version() == version else []


def _same(found: list[Segment], wanted: list[Segment], what: str) -> None:
    equal([(s.index, s.num_rows, vars(s.header)) for s in found], [(s.index, s.num_rows, vars(s.header)) for s in wanted], what)
    for a, b in zip(found, wanted, strict=True):
        same_arrays(a.arrays, b.arrays, what)


def every_rank_has_its_part_and_no_more(make: MakeRanks) -> None:
    """A batch is split by whole segments if their number divides, else by rows; ragged fields go with their rows."""
    fields = {"x": FieldSpec(("B",)), "over_time": FieldSpec((2, "B", 3), torch.int64), "of_all": FieldSpec((4,))}
    fields |= {"row_start": FieldSpec(("B",), torch.int64), "row_length": FieldSpec(("B",), torch.int64, length_of="N")}
    fields |= {"token": FieldSpec(("N",), torch.int32)}
    spec = spec_of(fields=fields, sizes={"B": ROWS, "N": 9}, variable=("N",), capacity=4)
    for ranks, num in ((2, 4), (3, 1), (3, 2)):
        stream = make(spec, OPEN)
        for value in range(num):
            slot = reserved(stream.writer(0))
            for name, x in slot.arrays.items():
                x.copy_((torch.arange(x.numel()) + 100 * value + len(name)).view(x.shape))
            slot.arrays["row_length"].copy_(torch.tensor([2, 0, 3]))
            slot.arrays["row_start"].copy_(torch.tensor([0, 2, 2]))
            slot.header.used = {"N": 5}
            stream.writer(0).commit(slot, num_steps=5)
        ends = {rank: stream.rank(rank, ranks) for rank in range(1, ranks)}
        for rank, end in ends.items():
            equal(_part(end, 0, rank, ranks), [], "a part before rank 0 has taken anything")
        taken = stream.reader("trainer").take(num, ranks=ranks)
        for rank, end in ends.items():
            what = f"the part of rank {rank} of {ranks} in {num} segments"
            _same(_part(end, 0, rank, ranks), share_of(taken, rank, ranks), what)
            _same(_part(end, 0, rank, ranks), share_of(taken, rank, ranks), "the same part, asked for again")


def trajectories_go_with_all_their_rows(make: MakeRanks) -> None:
    """Ranks share trajectories; the rows, turns and tokens of each go with it, counted anew."""
    fields = {"reward": FieldSpec(("B",)), "row_owner": FieldSpec(("R",), torch.int64, index_of=("B",))}
    fields |= {"row_length": FieldSpec(("R",), torch.int64, length_of="N"), "tokens": FieldSpec(("N",), torch.int64)}
    fields |= {"turn_row": FieldSpec(("U",), torch.int64, index_of=("R",))}
    spec = spec_of(fields=fields, sizes={"B": 3, "R": 6, "N": 20, "U": 8}, variable=("N", "R", "U"), capacity=4)
    stream = make(spec, OPEN)
    slot = reserved(stream.writer(0))
    filled: dict[str, list[float]] = {
        "reward": [0.0, 1.0, 2.0],
        "row_owner": [0, 1, 1, 2],
        "row_length": [2, 1, 3, 0],
        "turn_row": [0, 0, 2, 3],
    }
    filled["tokens"] = [0, 0, 1, 1, 1, 1]
    for name, values in filled.items():
        slot.arrays[name][: len(values)] = torch.tensor(values)
    slot.header.used = {"N": 6, "R": 4, "U": 4}
    stream.writer(0).commit(slot, num_steps=6)
    ends = {rank: stream.rank(rank, 3) for rank in (1, 2)}
    taken = stream.reader("trainer").take(1, ranks=3)
    wanted = {
        0: {"reward": [0.0], "row_owner": [0], "row_length": [2], "turn_row": [0, 0], "tokens": [0, 0]},
        1: {"reward": [1.0], "row_owner": [0, 0], "row_length": [1, 3], "turn_row": [1], "tokens": [1, 1, 1, 1]},
        2: {"reward": [2.0], "row_owner": [0], "row_length": [0], "turn_row": [0], "tokens": []},
    }
    for rank, expected in wanted.items():
        (mine,) = _part(ends[rank], 0, rank, 3) if rank else share_of(taken, 0, 3)
        equal({name: x.tolist() for name, x in mine.arrays.items()}, expected, f"what belongs to the trajectory of rank {rank}")


def a_part_belongs_to_one_version(make: MakeRanks) -> None:
    """A rank at the next version gets no part of an old batch, neither before nor after rank 0 has released it."""
    stream = make(spec_of(), OPEN)
    reader, end = stream.reader("trainer"), stream.rank(1, 2)
    for version in range(4):
        for value in range(2):
            write(stream.writer(0), 10.0 * version + value, version=version)
        equal(_part(end, version, 1, 2), [], "a part before rank 0 has taken the batch")
        taken = reader.take(2, ranks=2)
        equal([float(s.arrays["x"][0]) for s in _part(end, version, 1, 2)], [10.0 * version + 1.0], "the part of a batch")
        equal(_part(end, version + 1, 1, 2), [], "a part for a rank that has moved on")
        reader.release(taken)
        equal(_part(end, version + 1, 1, 2), [], "a part of a batch that was released")
        reader.advance(version + 1)
        equal(_part(end, version + 1, 1, 2), [], "a part before the next batch")
        equal(end.version(), version + 1, "the version")


def what_every_rank_says_reaches_the_writer(make: MakeRanks) -> None:
    """Feedback of all ranks arrives, by whole segments and by rows. A rank without feedback changes nothing."""
    spec = spec_of(feedback={"echo": FieldSpec(("B",)), "per_time": FieldSpec((2, "B"), torch.int32)})
    for ranks, num in ((2, 2), (3, 1)):
        stream = make(spec, OPEN)
        writer, reader = stream.writer(0), stream.reader("trainer")
        ends = {rank: stream.rank(rank, ranks) for rank in range(1, ranks)}
        for value in range(num):
            write(writer, float(value))
        taken = reader.take(num, ranks=ranks)
        for rank in (*ends, 0):
            mine = _part(ends[rank], 0, rank, ranks) if rank else share_of(taken, 0, ranks)
            said = [{"echo": s.arrays["x"] + rank, "per_time": torch.full((2, s.num_rows), 7 + rank)} for s in mine]
            (ends[rank] if rank else reader).answer(mine, said, rank=rank)
        reader.release(taken, feedback=[{} for _ in taken])
        heard = writer.feedback()
        wanted = [[0.0] * ROWS, [2.0] * ROWS] if ranks == 2 else [[0.0, 1.0, 2.0]]
        equal([f.values["echo"].tolist() for f in heard], wanted, f"what {ranks} ranks said")
        times = [[[7] * ROWS] * 2, [[8] * ROWS] * 2] if ranks == 2 else [[[7, 8, 9]] * 2]
        equal([f.values["per_time"].tolist() for f in heard], times, f"what {ranks} ranks said")


def ranks_learn_where_they_meet(make: MakeRanks) -> None:
    """A rank that was given a part knows the address that rank 0 has announced."""
    stream = make(spec_of(), OPEN)
    reader, end = stream.reader("trainer"), stream.rank(1, 3)
    equal(end.meeting(), "", "where ranks meet before it was said")
    reader.announce(MEETING)
    write(stream.writer(0), 1.0)
    reader.take(1, ranks=3)
    true(bool(_part(end, 0, 1, 3)), "a rank got no part of a batch")
    equal(end.meeting(), MEETING, "where ranks meet")


def accounts_are_those_of_one_reader(make: MakeRanks) -> None:
    """With any number of ranks, a row is in flight until rank 0 releases it, and is consumed once."""
    stream = make(spec_of(feedback={"echo": FieldSpec(("B",))}), OPEN)
    reader, ends = stream.reader("trainer"), {rank: stream.rank(rank, 3) for rank in (1, 2)}
    for version in range(3):
        for _ in range(2):
            write(stream.writer(0), 1.0, version=version)
        taken = reader.take(2, ranks=3)
        for rank, end in ends.items():
            mine = _part(end, version, rank, 3)
            end.answer(mine, [{"echo": s.arrays["x"]} for s in mine], rank=rank)
            account = reader.accounting()
            equal((account.in_flight, account.consumed, account.balance), (2 * ROWS, 2 * ROWS * version, 0), "account")
        reader.release(taken)
        reader.advance(version + 1)
        account = reader.accounting()
        equal((account.in_flight, account.consumed, account.balance), (0, 2 * ROWS * (version + 1), 0), "account")


RANKS: dict[str, Callable[[MakeRanks], None]] = {
    check.__name__: check
    for check in (
        every_rank_has_its_part_and_no_more,
        trajectories_go_with_all_their_rows,
        a_part_belongs_to_one_version,
        what_every_rank_says_reaches_the_writer,
        ranks_learn_where_they_meet,
        accounts_are_those_of_one_reader,
    )
}
"""The properties by name."""
