"""Frames over pipes and sockets: whole, in order, bounded, and clear about an end that comes too early."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from runnel.core.framing import HEADER, FrameTooLarge, MessageSocket, TruncatedFrame, pack_frame, read_frame, write_frame


def pair(**settings: int) -> tuple[MessageSocket, MessageSocket]:
    here, there = socket.socketpair()
    return MessageSocket(here, **settings), MessageSocket(there, **settings)


def test_a_frame_goes_through_a_pipe_that_is_smaller() -> None:
    read, write = os.pipe()
    parts = b"head", os.urandom(1 << 20)
    writer = threading.Thread(target=write_frame, args=(write, *parts))
    writer.start()
    assert read_frame(read) == b"".join(parts)
    writer.join()
    write_frame(write, b"")
    assert read_frame(read) == b""
    os.close(write)
    with pytest.raises(EOFError, match="has closed") as caught:
        read_frame(read)
    assert not isinstance(caught.value, TruncatedFrame)
    os.close(read)


@pytest.mark.parametrize(("num", "told"), [(3, "3 of 8 bytes"), (8, "0 of 5 bytes"), (11, "3 of 5 bytes")])
def test_a_frame_that_ends_early_is_told(num: int, told: str) -> None:
    read, write = os.pipe()
    os.write(write, pack_frame(b"abcde")[:num])
    os.close(write)
    with pytest.raises(TruncatedFrame, match=told):
        read_frame(read)
    os.close(read)


def test_frames_above_the_limit_are_neither_sent_nor_read() -> None:
    read, write = os.pipe()
    with pytest.raises(FrameTooLarge, match="5 bytes is larger than the limit of 4 bytes"):
        write_frame(write, b"abcde", limit=4)
    os.write(write, HEADER.pack(1 << 60))
    with pytest.raises(FrameTooLarge, match=str(1 << 60)):
        read_frame(read)
    os.close(read)
    os.close(write)
    here, there = socket.socketpair()
    here.sendall(HEADER.pack(1 << 60))
    with pytest.raises(FrameTooLarge, match=str(1 << 60)):
        MessageSocket(there).receive()
    with pytest.raises(FrameTooLarge, match="limit of 10 bytes"):
        MessageSocket(here, limit=10).send({"text": "long"})
    here.close()
    there.close()


def test_messages_arrive_whole_and_in_order() -> None:
    here, there = pair()
    there.send({"n": 1})
    there.send({"text": "x" * 3000})
    assert [len(str(message)) > 1000 for message in here.receive()] == [False, True]
    assert here.receive() == []
    assert not here.closed


def test_a_message_that_comes_in_pieces_is_put_together() -> None:
    raw, there = socket.socketpair()
    line = MessageSocket(there)
    data = pack_frame(b'{"n": 1}', b"") + pack_frame(b'{"n": 2}')
    for byte in data[:-1]:
        raw.sendall(bytes([byte]))
    assert line.receive() == [{"n": 1}]
    raw.sendall(data[-1:])
    assert line.receive() == [{"n": 2}]


def test_last_words_are_heard_although_an_order_could_not_be_given() -> None:
    """A child that failed says why and exits; the launcher may be sending it an order at that very moment."""
    here, there = pair()
    here.send({"op": "go"})  # never read
    there.send({"op": "error", "text": "the engine broke"})
    there.close()
    here.send({"op": "pause"})
    assert here.receive() == [{"op": "error", "text": "the engine broke"}]
    assert here.closed


def test_messages_behind_the_next_are_kept() -> None:
    one, other = pair()
    for number in range(3):
        one.send({"number": number})
    assert other.next_message() == {"number": 0}
    assert other.next_message(0.0) == {"number": 1}
    assert other.receive() == [{"number": 2}]
    with pytest.raises(TimeoutError, match="no message came"):
        other.next_message(0.01)
    one.close()
    assert other.next_message() is None


def test_half_a_message_is_told_where_it_is_waited_for() -> None:
    raw, there = socket.socketpair()
    raw.sendall(pack_frame(b'{"n": 1}')[:12])
    raw.close()
    line = MessageSocket(there)
    with pytest.raises(TruncatedFrame, match="12 bytes had arrived"):
        line.next_message()
    assert line.closed
    assert line.receive() == []


def test_threads_may_send_at_once() -> None:
    here, there = pair()
    threads = [threading.Thread(target=here.send, args=({"text": str(n) * 100_000},)) for n in range(4)]
    for thread in threads:
        thread.start()
    found = [there.next_message(20.0) for _ in threads]
    assert sorted(m["text"][0] for m in found if m) == ["0", "1", "2", "3"]
    assert all(m and len(set(m["text"])) == 1 for m in found)


def test_values_that_json_lacks_can_be_given_a_form() -> None:
    here, there = socket.socketpair()
    MessageSocket(here, encode=sorted).send({"set": {2, 1}})
    assert MessageSocket(there).next_message() == {"set": [1, 2]}
    with pytest.raises(TypeError):
        MessageSocket(here).send({"set": {2, 1}})
