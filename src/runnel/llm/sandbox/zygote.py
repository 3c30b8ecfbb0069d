"""The program that interpreters of sessions are forked from. It never runs code of a model.

It starts once, imports what all interpreters need, and then forks one for each order that comes over its socket: an order is
the name of a folder, with the interpreter's pipes. Each fork confines itself as `child.py` does for one run: the first process
enters the namespaces and waits, the second is pid 1 there, the third is confined and runs the code (`loop.py`).
"""

from __future__ import annotations

import _socket
import gc
import os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any

    from runnel.llm.sandbox import child, confine, loop
else:
    import _signal

    import child
    import confine
    import loop
NUM_FDS = 4
LOOK_S = 1.0
"""Time between two looks whether the parent still lives. Usually its end of the socket closes first."""


def main(order_fd: int, control_fd: int) -> None:
    """Fork interpreters until the parent closes its end of the socket, or ends."""
    order, own = child.read_literal(order_fd), os.getpid()
    _signal.signal(
        _signal.SIGTERM, _signal.SIG_IGN
    )  # schedulers send it to all processes; the parent decides when this one ends
    sys.path[:] = order["path"]
    for name in (*loop.AHEAD, *order["preload"]):
        __import__(name)
    gc.freeze()  # a collection in a fork would write to pages that all forks share
    control = _socket.socket(fileno=control_fd)
    control.settimeout(LOOK_S)
    while os.getppid() == order["parent"]:
        try:
            folder, extra, _, _ = control.recvmsg(4096, _socket.CMSG_SPACE(4 * NUM_FDS))
        except TimeoutError:
            continue
        finally:
            reap()
        if not folder:
            break
        fds = [int.from_bytes(data[i : i + 4], sys.byteorder) for _, _, data in extra for i in range(0, len(data), 4)]
        if os.fork() == 0:
            try:
                control.close()
                first(order, folder.decode(), own, *fds)
            finally:
                os._exit(1)  # whatever happened, a fork must not take orders
        for fd in fds:
            os.close(fd)
    os._exit(0)  # the kernel kills the first process of each interpreter, and so all of it


def reap() -> None:
    """Forget interpreters that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def first(order: dict[str, Any], folder: str, zygote: int, status_fd: int, asked_fd: int, said_fd: int, output_fd: int) -> None:
    """Enter the namespaces, and wait for pid 1 there. This process keeps the pipe of the output open until all have ended."""
    confine.die_with_parent()
    child.attempt({}, "oom", child.be_first_to_go)
    for fd in (1, 2):
        os.dup2(output_fd, fd)
    os.close(output_fd)
    os.environ.update(HOME=folder, TMPDIR=folder)
    os.chdir(folder)
    config: dict[str, Any] = {**order, "folder": folder, "stdin": ""}
    took: dict[str, str] = {}
    child.isolate(config, took)
    confine.die_with_parent()  # again: a change of the user id has reset it
    if os.getppid() != zygote:  # it has ended already
        os._exit(1)
    pid = os.fork()
    if pid == 0:
        second(config, took, status_fd, asked_fd, said_fd)
    for fd in (status_fd, asked_fd, said_fd):
        os.close(fd)
    os.waitpid(pid, 0)
    os._exit(0)


def second(config: dict[str, Any], took: dict[str, str], status_fd: int, asked_fd: int, said_fd: int) -> None:
    """Pid 1: kills the interpreter when the parent shuts its end of the socket, or ends; reports how it ended."""
    confine.die_with_parent()
    confine.hide()
    pid = os.fork()
    if pid == 0:
        third(config, took, status_fd, asked_fd, said_fd)
    os.close(asked_fd)
    os.close(said_fd)
    watch, ended = select.poll(), os.pidfd_open(pid)
    watch.register(ended, select.POLLIN)
    watch.register(status_fd, select.POLLIN)
    if ended not in dict(watch.poll()):
        os.kill(pid, confine.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    child.tell(status_fd, exit=code, cpu_s=used.ru_utime + used.ru_stime)
    os._exit(0)


def third(config: dict[str, Any], took: dict[str, str], status_fd: int, asked_fd: int, said_fd: int) -> None:
    """The interpreter's process."""
    child.feed_stdin("", made=took.get("root") == "")
    problems = child.restrict(config, took)
    child.tell(status_fd, took=took, broken=problems)
    os.close(status_fd)  # before any code runs, so that none can write a false status
    if problems and config["strict"]:
        os._exit(child.REFUSED)
    hidden = [f"{path}/" for path in (config["folder"], *config["path"], *config["prefixes"])]
    loop.CallLoop(asked_fd, said_fd, most=config["most"], hidden=hidden).serve()
    os._exit(0)
