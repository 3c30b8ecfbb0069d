"""Which orders a run obeys: all that were given since it held its folder, and none of an earlier start."""

from __future__ import annotations

from pathlib import Path

from fakes_run import experiment

from runnel.core.clock import ManualClock
from runnel.run.checkpoint import Checkpoints
from runnel.run.launchers import inproc
from runnel.run.ledger import Ledger
from runnel.run.session import Session
from runnel.run.wiring import place
from runnel.track.folder import RunFolder


def begin(path: Path) -> tuple[Session, ManualClock]:
    e, folder, clock = experiment(), RunFolder(path), ManualClock()
    return Session(e, place(e), folder, Ledger(folder, clock), Checkpoints(folder.checkpoints), clock), clock


def test_an_order_that_came_before_the_first_round_is_obeyed(tmp_path: Path) -> None:
    session, clock = begin(tmp_path)
    session.folder.add_order({"op": "checkpoint"})
    session.folder.add_order({"op": "stop"})
    clock.advance(5.0)  # the workers were slow to start
    assert [order["op"] for order in session.orders()] == ["checkpoint", "stop"]
    assert inproc.launch(session) == "interrupted"


def test_an_order_to_an_earlier_start_is_not_obeyed_again(tmp_path: Path) -> None:
    RunFolder(tmp_path).add_order({"op": "stop"})
    session, clock = begin(tmp_path)
    clock.advance(5.0)
    assert session.orders() == []
    assert not session.interrupted.is_set()
