"""The process of a trial on this machine: a fork with a line to whoever gave the order (`pool.py`)."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading

from runnel.core.framing import MessageSocket
from runnel.tune.job import Talk, work


def live(parent: int, fds: list[int], held: list[int]) -> int:
    """All of its life: its first message is its order. Whoever gave it may go: then the trial ends with a checkpoint."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    line = MessageSocket(socket.socket(fileno=fds[0]))
    order = line.next_message()
    if order is None:
        return 0
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    talk = Talk(line)
    threading.Thread(target=_listen, args=(line, talk), daemon=True).start()
    work(order, talk)
    return 0


def _listen(line: MessageSocket, talk: Talk) -> None:
    while not line.closed:
        for message in line.receive():
            talk.take(message)
        if not line.closed:
            select.select([line], [], [])
    talk.hang_up()
