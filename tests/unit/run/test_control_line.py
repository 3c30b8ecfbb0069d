from __future__ import annotations

import socket

from runnel.run.launchers.line import Line


def test_messages_arrive_whole_and_in_order() -> None:
    here, there = (Line(end) for end in socket.socketpair())
    there.send({"n": 1})
    there.send({"text": "x" * 3000})
    assert [len(str(message)) > 1000 for message in here.receive()] == [False, True]
    assert here.receive() == []
    assert not here.closed


def test_last_words_are_heard_although_an_order_could_not_be_given() -> None:
    """A child that failed says why and exits; the launcher may be sending it an order at that very moment."""
    here, there = (Line(end) for end in socket.socketpair())
    here.send({"op": "go"})  # never read
    there.send({"op": "error", "text": "the engine broke"})
    there.close()
    here.send({"op": "pause"})
    assert here.receive() == [{"op": "error", "text": "the engine broke"}]
    assert here.closed
