"""A rank on another node: it fetches its part of each batch and sends its feedback back.

The agent of the stream's node cuts the part out of the batch, so only that part travels. Fetching changes nothing there, and
feedback counts only for the batch that it names. So both calls may come late or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from runnel.core.errors import DataError
from runnel.core.records import Batch, Header, Segment, StreamSpec
from runnel.flow.inference.codec import Bytes, packed, unpack
from runnel.flow.slots import SlotTable, TableReader
from runnel.flow.transports.cluster import remote
from runnel.flow.transports.cluster.remote import Call, Head, Parcel, Peer


class RemoteRankReader:
    """`RankReader` for a stream on another node. One `share` call is always open; its reply comes when rank 0 takes a batch."""

    def __init__(
        self,
        peer: Callable[[], Peer],
        spec: StreamSpec,
        reader: str,
        rank: int,
        ranks: int,
        *,
        wake: Callable[[], None],
        first: int = 0,
    ) -> None:
        self._peer, self.spec, self._wake = peer, spec, wake
        self._who: Head = {"stream": spec.name, "reader": reader, "rank": rank, "ranks": ranks}
        self._number = first
        self._asked: Call | None = None
        self._version = self._had = -1
        self._share: list[Segment] = []
        self._meeting = ""

    def version(self) -> int:
        self._hear()
        if self._asked is None:
            self._asked = self._call("share", {"had": self._had, "wait_s": remote.LONG_POLL_S})
        return self._version

    def given(self, rank: int, ranks: int) -> list[Segment]:
        assert (rank, ranks) == (self._who["rank"], self._who["ranks"]), "a remote reader serves one rank only"
        return list(self._share)

    def meeting(self) -> str:
        return self._meeting

    def answer(self, segments: Sequence[Segment], feedback: Sequence[Mapping[str, Tensor]], *, rank: int) -> None:
        which = [[segment.index, segment.header.sample_id] for segment in segments]
        call = self._call("answer", {"version": self._had, "segments": which}, _side_by_side(feedback))
        call.wait(remote.FLUSH_S)
        if call.result()[0]["refused"]:
            raise DataError(
                f"stream {self.spec.name!r}: rank {rank} sends feedback for a part of version {self._had} that it did not get"
            )

    def _hear(self) -> None:
        if self._asked is None or not self._asked.done():
            return
        (head, body), self._asked = self._asked.result(), None
        if head["segments"]:
            assert body is not None, "a share has a body"
            self._had, self._meeting = head["version"], head["meeting"]
            self._share = _unpack_share(self.spec, head, body)
        elif head["version"] > self._version:
            self._share = []
        self._version = max(self._version, head["version"])

    def _call(self, method: str, head: Head, body: Bytes | None = None) -> Call:
        self._number += 1
        return Call(self._peer, method, {**self._who, "number": self._number, **head}, body, wake=self._wake)


def _unpack_share(spec: StreamSpec, head: Head, body: Bytes) -> list[Segment]:
    arrays = _apart(unpack(body, len(body)), len(head["segments"]))
    part = replace(spec, sizes={**spec.sizes, spec.rows: head["rows"]}) if head["rows"] != spec.num_rows else spec
    return [Segment(i, part, Header(**header), found) for (i, header), found in zip(head["segments"], arrays, strict=True)]


def _side_by_side(rows: Sequence[Mapping[str, Tensor]]) -> Bytes:
    return packed(Batch({f"{n}/{key}": value.detach().cpu() for n, one in enumerate(rows) for key, value in one.items()}))


def _apart(rows: Mapping[str, Tensor], num: int) -> list[Batch]:
    found = [Batch() for _ in range(num)]
    for name, value in rows.items():
        number, _, key = name.partition("/")
        found[int(number)][key] = value
    return found


# ------------------------------------------------------------------------------------------------------ on the stream's node
def find_share(table: SlotTable, head: Head) -> Parcel | None:
    """A rank's part of the batch that rank 0 has taken; None if the rank `had` this batch already."""
    reader = _reader(table, head)
    # Read the version before the segments: a batch is released before the version moves, so a part that is found now cannot be
    # of an older version than this.
    version = reader.version()
    mine = reader.given(head["rank"], head["ranks"]) if version > head["had"] else []
    if not mine:
        return None
    segments = [[segment.index, vars(segment.header)] for segment in mine]
    found = {"version": version, "rows": mine[0].num_rows, "segments": segments, "meeting": reader.meeting()}
    return found, _side_by_side([segment.arrays for segment in mine])


def no_share(table: SlotTable, head: Head) -> Parcel:
    """The reply when there is no part for the rank yet."""
    return {"version": _reader(table, head).version(), "segments": []}, None


def put_answer(table: SlotTable, head: Head, body: Bytes | None) -> Parcel:
    """Write a rank's feedback beside its part, if the rank still has that part."""
    assert body is not None, "feedback has a body"
    reader = _reader(table, head)
    known = reader.version() == head["version"]
    mine = {(s.index, s.header.sample_id): s for s in reader.given(head["rank"], head["ranks"])} if known else {}
    named = [(index, sample_id) for index, sample_id in head["segments"]]
    refused = any(name not in mine for name in named)
    if not refused:
        said = _apart(unpack(body, len(body)), len(named))
        reader.answer([mine[name] for name in named], said, rank=head["rank"])
    return {"refused": int(refused)}, None


def _reader(table: SlotTable, head: Head) -> TableReader:
    if not 0 < head["rank"] < head["ranks"]:
        raise DataError(f"rank {head['rank']} of {head['ranks']} has no part to fetch: only ranks after 0 have")
    return TableReader(table, head["reader"])
