"""The process that forks: what its children are given, how their ends are told, what is left when it goes."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runnel.core.framing import MessageSocket
from runnel.run.launchers.fork_server import MOST_FDS, Fork, ForkServer

LIVE = f"{__file__}:live"


def live(parent: int, fds: list[int], held: list[int]) -> int:
    """What a child of these tests does: tells what it was given, then obeys."""
    line = MessageSocket(socket.socket(fileno=fds[0]))
    read = [os.pread(fd, 16, 0).decode() for fd in held]
    line.send({"parent": parent == os.getppid(), "held": read, "drawn": np.random.random(), "modules": "wave" in sys.modules})
    order = line.next_message()
    if order is None:
        return 0
    if order["do"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if order["do"] == "raise":
        raise ValueError("out of order")
    while order["do"] == "stay":
        time.sleep(0.01)
    return int(order["do"])


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    made = ForkServer(LIVE, tmp_path_factory.mktemp("forks") / "log.txt", early=("wave", "no_such_module"))
    yield made
    made.close()


def child(fork_server: ForkServer) -> tuple[Fork, MessageSocket]:
    ours, theirs = socket.socketpair()
    fork = fork_server.fork(theirs.fileno())
    theirs.close()
    return fork, MessageSocket(ours)


def test_a_child_gets_what_is_held_in_order_and_draws_its_own_numbers(fork_server: ForkServer, tmp_path: Path) -> None:
    """More descriptors than the kernel takes in one message."""
    path = tmp_path / "some"
    fds = []
    for i in range(MOST_FDS + 3):
        path.write_text(str(i))
        fds.append(os.open(path, os.O_RDONLY))
        path.unlink()
    fork_server.hold(fds)
    pairs = [child(fork_server) for _ in range(2)]
    said = [line.next_message() or {} for _, line in pairs]
    fork_server.drop()
    pairs.append(child(fork_server))
    said.append(pairs[-1][1].next_message() or {})
    for fd in fds:
        os.close(fd)
    assert [s["held"] for s in said] == [[str(i) for i in range(MOST_FDS + 3)]] * 2 + [[]]
    assert all(s["parent"] and s["modules"] for s in said)
    assert len({s["drawn"] for s in said}) == 3
    for fork, line in pairs:
        line.send({"do": 0})
        assert fork.wait(20.0)


@pytest.mark.parametrize(
    ("order", "code", "how"),
    [
        (0, 0, "exited with code 0"),
        (7, 7, "exited with code 7"),
        ("kill", -9, "was killed by signal SIGKILL"),
        ("raise", 1, "code 1"),
    ],
)
def test_how_a_child_ended_is_told(fork_server: ForkServer, order: object, code: int, how: str) -> None:
    fork, line = child(fork_server)
    assert line.next_message() is not None
    assert not fork.ended()
    assert not fork.wait(0.01)
    line.send({"do": order})
    assert fork.wait(20.0)
    assert fork.code == code
    assert how in fork.how()
    assert f"process {fork.pid}" in fork.how()


def test_a_child_takes_signals_while_it_lives(fork_server: ForkServer) -> None:
    fork, line = child(fork_server)
    assert line.next_message() is not None
    line.send({"do": "stay"})
    fork.ended()
    fork.signal(signal.SIGTERM)
    assert fork.wait(20.0)
    assert fork.code == -signal.SIGTERM
    fork.signal(signal.SIGKILL)  # to nobody


def test_children_are_lost_with_the_process_that_forks(tmp_path: Path) -> None:
    fork_server = ForkServer("runnel.run.launchers.fork_server:no_such_thing", tmp_path / "log.txt")
    fork, line = child(fork_server)
    assert fork.wait(60.0)
    assert (fork.pid, fork.code, fork_server.forked) == (None, None, 0)
    assert fork.how() == "was lost with its fork server"
    assert line.next_message() is None
    assert "no_such_thing" in (tmp_path / "log.txt").read_text()
    child(fork_server)  # nobody hears it, nothing is raised
    fork_server.close()


def test_messages_behind_the_first_are_kept() -> None:
    one, other = (MessageSocket(sock) for sock in socket.socketpair())
    for number in range(3):
        one.send({"number": number})
    assert other.next_message() == {"number": 0}
    assert json.dumps(other.receive()) == '[{"number": 1}, {"number": 2}]'
    one.close()
    assert other.next_message() is None
