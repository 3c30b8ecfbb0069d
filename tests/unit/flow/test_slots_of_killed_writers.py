"""A writer that is killed in the middle of a transition: its slots are given back, and the accounts add up again."""

from __future__ import annotations

import pytest

from runnel.flow.slot_memory import DISPATCHED, FREE, RESERVED
from runnel.flow.staleness import LagRule
from runnel.flow.transports.inproc import InprocTransport
from runnel.testing.sample_properties import spec_of


@pytest.mark.parametrize("torn", ["not counted yet", "counted, not reserved", "whole"])
def test_a_torn_reservation_is_mended(torn: str) -> None:
    spec = spec_of(capacity=4, num_writers=2)
    table = InprocTransport().samples(spec, LagRule(lag=3, batch=1, exact=False))
    table.reserve(0)
    slot = table.reserve(1)
    assert slot is not None
    if torn == "not counted yet":
        table.globals[DISPATCHED] -= spec.num_rows
    elif torn == "counted, not reserved":
        table.state[slot.index] = FREE
    lost = table.cancel_writer(1, "worker_lost")
    assert lost == (0 if torn == "counted, not reserved" else spec.num_rows)
    assert table.state.tolist().count(RESERVED) == 1
    table.accounting(0).check("stream")
