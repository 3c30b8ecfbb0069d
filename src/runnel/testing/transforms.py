"""The contract check of transforms, for their authors: rows that add up, no waiting inside a step, and a state that goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from runnel.core.clock import ManualClock
from runnel.core.contracts.inference import Inferencer
from runnel.core.contracts.samples import SampleReader, Transform
from runnel.core.errors import DataError
from runnel.core.records import Slot, StreamSpec
from runnel.flow.inference.inline import InlineClient
from runnel.flow.lossy import make_reader
from runnel.flow.params import ChannelSubscriber, NoChannel
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.flow.staleness import LagRule
from runnel.flow.transports.inproc import InprocTransport
from runnel.flow.workers.transform import TransformWorker
from runnel.testing.expect import equal, same_arrays, true

Fill = Callable[[Slot, np.random.Generator], int]
"""Fills the arrays of a slot with one plausible segment, sets `header.used`, and returns its number of steps."""
STEPS = 60
MANY = 1_000
"""Steps after which a transform that still works, without anything new to read, counts as one that never stops."""


def check_transform(
    make: Callable[[], Transform],
    *,
    reads: Mapping[str, Fill],
    streams: Sequence[StreamSpec],
    writes: Sequence[str] = (),
    asks: Mapping[str, Callable[[], Inferencer]] | None = None,
    name: str = "transform",
) -> list[str]:
    """What is wrong with a transform: one sentence for each broken property; an empty list is a pass.

    `streams` are the streams that it reads and writes; `name` is its name among their readers. `reads` says for each stream
    that it reads how a segment is filled, `asks` makes the inferencer behind each inference stream that it asks.
    """
    found = []
    for check in (rows_add_up, it_waits_in_words, a_full_stream_holds_it, a_snapshot_goes_on):
        try:
            check(lambda: _Rig(make, reads, streams, writes, asks or {}, name))
        except (AssertionError, DataError) as error:
            found.append(f"{check.__name__}: {error}")
    return found


def rows_add_up(make: Callable[[], _Rig]) -> None:
    """After every step the accounts of all readers add up, and what it says it holds is what the streams say it holds."""
    rig = make()
    for _ in range(STEPS):
        rig.turn()
        rig.check()


def it_waits_in_words(make: Callable[[], _Rig]) -> None:
    """With nothing to read it returns 0 at last, and says what it waits for."""
    rig = make()
    rig.until_idle()
    true(bool(rig.worker.waits_for()), "waits_for() is empty although step() returned 0: say what it waits for")


def a_full_stream_holds_it(make: Callable[[], _Rig]) -> None:
    """When nobody reads what it writes, it waits, and loses nothing that it has read as a lossless reader."""
    rig = make()
    for _ in range(STEPS):
        rig.write()
        rig.worker.poll()
        rig.check()
    rig.until_idle()
    rig.check()


def a_snapshot_goes_on(make: Callable[[], _Rig]) -> None:
    """One that is restored from a snapshot writes the same rows as one that was never interrupted."""
    whole, half, again = make(), make(), make()
    for _ in range(STEPS // 2):
        whole.turn()
        half.turn()
    again.restore(half)
    for _ in range(STEPS // 2):
        whole.turn()
        again.turn()
    equal(again.heads, whole.heads[len(whole.heads) - len(again.heads) :], "rows written after a restore")
    for found, wanted in zip(reversed(again.written), reversed(whole.written), strict=False):
        same_arrays(found, wanted, "a segment written after a restore")
    for stream, reader in whole.readers.items():
        equal(again.readers[stream].accounting(), reader.accounting(), f"the account of stream {stream!r} after a restore")


class _Rig:
    """A transform with its streams; the check is the source of what it reads, and the reader of what it writes."""

    def __init__(
        self,
        make: Callable[[], Transform],
        reads: Mapping[str, Fill],
        streams: Sequence[StreamSpec],
        writes: Sequence[str],
        asks: Mapping[str, Callable[[], Inferencer]],
        name: str,
    ) -> None:
        self.fills, self.rng, self.version = reads, np.random.default_rng(0), 0
        self.specs = {s.name: replace(s, num_writers=1) for s in streams}
        transport, rule = InprocTransport(), LagRule(lag=1 << 30, batch=1, exact=False)
        self.tables: dict[str, SlotTable] = {s.name: transport.samples(s, rule) for s in self.specs.values()}
        self.readers: dict[str, SampleReader] = {s: make_reader(self.tables[s], name) for s in reads}
        self.sinks = {s: TableReader(self.tables[s], self.specs[s].readers[0]) for s in writes}
        self.others = [
            make_reader(self.tables[s], other) for s in reads for other in self.specs[s].all_readers if other != name
        ]
        self.clients = {s: InlineClient(inferencer(), ChannelSubscriber(NoChannel())) for s, inferencer in asks.items()}
        self.worker = TransformWorker(
            name,
            ManualClock(),
            transform=make(),
            readers=self.readers,
            clients=self.clients,
            writers={s: TableWriter(self.tables[s], 0) for s in writes},
        )
        self.heads: list[tuple[int, int]] = []
        self.written: list[Mapping[str, torch.Tensor]] = []

    def write(self) -> None:
        """One more segment in every stream that it reads, if there is room; other readers take and release theirs."""
        for stream, fill in self.fills.items():
            slot = TableWriter(self.tables[stream], 0).reserve()
            if slot is not None:
                slot.header.version_min = slot.header.version_max = self.version
                TableWriter(self.tables[stream], 0).commit(slot, num_steps=fill(slot, self.rng))
        for reader in self.others:
            reader.release(reader.take(reader.available()))

    def turn(self) -> None:
        self.write()
        self.worker.poll()
        self.read()

    def read(self) -> None:
        """Take what it wrote, as the trainer behind it would."""
        for sink in self.sinks.values():
            for segment in sink.take(sink.available()):
                self.heads.append((segment.header.sample_id, segment.header.num_steps))
                self.written.append(segment.arrays.map(torch.clone))
                sink.release([segment])
                self.version += 1
                sink.advance(self.version)

    def until_idle(self) -> None:
        for _ in range(MANY):
            if not self.worker.poll():
                return
        raise AssertionError(f"step() still returned work after {MANY} steps without anything new to read")

    def check(self) -> None:
        for table in self.tables.values():
            for index, reader in enumerate(table.spec.all_readers):
                table.accounting(index).check(f"{table.spec.name} ({reader})")
        self.worker.check()

    def restore(self, other: _Rig) -> None:
        """Be where `other` is, by snapshots of its streams and of its worker."""
        for name, table in self.tables.items():
            table.restore(other.tables[name].snapshot())
        self.worker.restore(other.worker.snapshot())
        self.rng.bit_generator.state = other.rng.bit_generator.state
        self.version = other.version
