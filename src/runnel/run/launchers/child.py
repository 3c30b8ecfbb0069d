"""One process group of the local launcher: forked by the fork server, ordered over its line. It ends with the launcher."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import Any

from runnel.core.framing import MessageSocket
from runnel.core.process import die_with_parent, leave_sigterm_to_the_run, show_name
from runnel.flow.transports.shm import Doorbells, ShmTransport
from runnel.run.launchers.member import Member, read_experiment, tell_error
from runnel.track.folder import RunFolder


def live(parent: int, fds: list[int], held: list[int]) -> int:
    """All of a child's life. `fds` are its line and where its output goes, `held` the memory and the bells of all groups."""
    control, log = fds
    die_with_parent(parent)
    leave_sigterm_to_the_run()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name, number in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, TextIOWrapper(LossyFile(number, "w", closefd=False), errors="replace", write_through=True))
    line = MessageSocket(socket.socket(fileno=control))
    orders = line.next_message()
    if orders is None:
        return 0
    show_name(orders["group"])
    with Path(orders["stack_file"]).open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        try:
            member = _member(orders, line, held)
        except Exception as error:
            tell_error(line, orders["group"], error)
            return 1
        return member.serve()


class LossyFile(FileIO):
    """Where what a process prints goes. It is not worth a run: what the disk has no room for is lost."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            return len(data)


def _member(orders: dict[str, Any], line: MessageSocket, held: list[int]) -> Member:
    folder = RunFolder.open(orders["run"])
    experiment = read_experiment(folder.read_run_info()["recipe"], folder.read_config())
    memory, bells = held[: len(orders["memory"])], held[len(orders["memory"]) :]
    pipes = dict(zip(orders["groups"], zip(bells[::2], bells[1::2], strict=True), strict=True))
    shm = ShmTransport(dict(zip(orders["memory"], memory, strict=True)), Doorbells(pipes, orders["group"]))
    numbers = {"epoch": orders["epoch"], "incarnation": orders["incarnation"]}
    return Member(experiment, orders["group"], line, shm, folder=folder.path, **numbers)
