"""A stream of many slots decides exactly as a stream of few: how its numbers are read makes no difference."""

from __future__ import annotations

import numpy as np
import pytest

from runnel.core.records import StreamSpec
from runnel.flow import slots
from runnel.flow.slot_memory import SlotMemory
from runnel.flow.slots import SlotTable, TableReader, TableWriter
from runnel.flow.staleness import LagRule


def play(exact: bool, seed: int) -> list[object]:
    """A random order of reservations, commits, reads and updates; everything that the table answered."""
    rng, said = np.random.default_rng(seed), []
    spec = StreamSpec(name="s", fields={}, sizes={"B": 2}, capacity=12, batch_segments=4, num_writers=5)
    table = SlotTable(spec, LagRule(lag=1, batch=4, exact=exact), SlotMemory.local(spec))
    writers, reader = [TableWriter(table, i) for i in range(5)], TableReader(table, "trainer")
    held, version = [], 0
    for _ in range(400):
        writer = int(rng.integers(5))
        slot = writers[writer].reserve()
        said.append(None if slot is None else (slot.index, slot.header.sequence, slot.header.required_version))
        if slot is not None:
            slot.header.version_min = slot.header.version_max = version
            held.append((writer, slot))
        if held and rng.random() < 0.7:
            writer, slot = held.pop(int(rng.integers(len(held))))
            writers[writer].commit(slot, num_steps=1)
        if batch := reader.take(4):
            version += 1
            reader.release(batch)
            reader.advance(version)
        said.append(vars(reader.accounting()))
    assert version > 10
    return said


@pytest.mark.parametrize("exact", [True, False])
def test_many_slots_decide_as_few_do(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    as_lists = play(exact, 3)
    monkeypatch.setattr(slots, "FEW", 0)
    assert play(exact, 3) == as_lists
