"""The end of a sample stream for a reader that nobody waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from torch import Tensor

from runnel.core.accounting import Accounting
from runnel.core.errors import DataError
from runnel.core.records import Segment
from runnel.flow.slots import SlotTable, TableReader


class LossyReader:
    """`SampleReader` on a slot table, for a reader that nobody waits for.

    `take` gives copies of up to the number that was asked for, in the order in which they were begun. Their rows are held
    until `release` or `drop` says what became of them.
    """

    def __init__(self, table: SlotTable, reader: str) -> None:
        self._table, self.spec = table, table.spec
        self._name, self._index = reader, len(table.spec.readers) + table.spec.lossy_readers.index(reader)

    def available(self) -> int:
        return self._table.available(self._index)

    def take(self, num_segments: int) -> list[Segment]:
        return self._table.copy(self._index, num_segments)

    def release(self, segments: Sequence[Segment], *, feedback: Sequence[Mapping[str, Tensor]] | None = None) -> None:
        if feedback is not None:
            self._refuse("send feedback")
        self.settle(consumed=sum(s.num_rows for s in segments))

    def drop(self, segments: Sequence[Segment], reason: str) -> None:
        self.settle(dropped={reason: sum(s.num_rows for s in segments)})

    def hold(self, segments: Sequence[Segment]) -> None:
        """No-op: the rows of a copy are held already."""

    def settle(self, *, consumed: int = 0, dropped: Mapping[str, int] | None = None) -> None:
        self._table.settle(self._index, consumed, dropped or {})

    def held(self) -> int:
        return self._table.held(self._index)

    def advance(self, version: int) -> None:
        self._refuse("tell the writers a version")

    def accounting(self) -> Accounting:
        return self._table.accounting(self._index)

    def _refuse(self, what: str) -> NoReturn:
        raise DataError(f"stream {self.spec.name!r}: reader {self._name!r} is lossy, and cannot {what}")


def make_reader(table: SlotTable, reader: str) -> TableReader | LossyReader:
    """The end of `table` for the reader of that name."""
    return LossyReader(table, reader) if reader in table.spec.lossy_readers else TableReader(table, reader)
