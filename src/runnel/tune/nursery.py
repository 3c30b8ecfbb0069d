"""The process that forks a child for each trial: it has imported everything and done nothing, so that a fork is safe and quick.

Its control socket takes `f` with a descriptor (fork a child that talks over it; answers with its id) and `w` with an id (wait
for that child; answers with its exit code). It ends when the other end does.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress

from runnel.run.launchers.line import Line
from runnel.tune.job import Message, Talk, work


def main(control: int) -> int:
    """Fork children until the other end of `control` is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trials, and for who started this
    _import_early()
    sock = socket.socket(fileno=control)
    while True:
        data, fds, _, _ = socket.recv_fds(sock, 1, 1)
        if not data:
            return 0
        if data == b"f":
            sock.sendall(_fork(fds[0], sock).to_bytes(8, "big"))
        else:
            sock.sendall(_wait(int.from_bytes(_read(sock, 8), "big")).to_bytes(8, "big", signed=True))


def _import_early() -> None:
    """What most trials need, so that they need not import it."""
    with suppress(ImportError):
        import gymnasium
        import safetensors.torch  # noqa: F401

        _ = gymnasium


def _fork(line: int, control: socket.socket) -> int:
    pid = os.fork()
    if pid:
        os.close(line)
        return pid
    code = 1
    try:
        control.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _live(socket.socket(fileno=line))
        code = 0
    except BaseException:  # nothing of a child may go back into the loop of its parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _live(sock: socket.socket) -> None:
    """The life of a child: its first message is its order."""
    line = Line(sock)
    talk = Talk(line)
    first: list[Message] = []
    while not first and not line.closed:
        select.select([line], [], [])
        first = line.receive()
    if not first:
        return
    order, *rest = first
    for message in rest:
        talk.take(message)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=_listen, args=(line, talk), daemon=True).start()
    work(order, talk)


def _listen(line: Line, talk: Talk) -> None:
    while not line.closed:
        select.select([line], [], [])
        for message in line.receive():
            talk.take(message)
    talk.hang_up()


def _wait(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return 0


def _read(sock: socket.socket, num: int) -> bytes:
    data = b""
    while len(data) < num:
        more = sock.recv(num - len(data))
        if not more:
            raise SystemExit(0)
        data += more
    return data
