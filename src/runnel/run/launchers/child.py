"""A child of the fork server under the local launcher: its log, its order, and the main function of a process group."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Sequence
from io import FileIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.core.framing import Message, MessageSocket
from runnel.core.process import die_with_parent, leave_sigterm_to_the_run, show_name
from runnel.flow.transports.shm import Doorbells, ShmTransport
from runnel.run.launchers.member import Member, read_experiment, tell_error
from runnel.track.folder import RunFolder

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def begin(fds: Sequence[int]) -> tuple[MessageSocket, Message] | None:
    """Redirect this process's output to its log and wait for its order; returns the line and the order, or None without one.

    `fds` come from `LocalHost.start`: the end of the line, and the log. From here on SIGUSR1 writes the stacks of all
    threads into the order's `stack_file`.
    """
    control, log = fds
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for name, number in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, TextIOWrapper(LossyFile(number, "w", closefd=False), errors="replace", write_through=True))
    line = MessageSocket(socket.socket(fileno=control))
    order = line.next_message()
    if order is None:
        return None
    show_name(order["name"])
    stack = Path(order["stack_file"]).open("w")  # noqa: SIM115 (it is written to until the process ends)
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
    return line, order


def live(parent: int, fds: list[int], held: list[int]) -> int:
    """Main function of a group's process. `held` are the descriptors of the memory and the bells of all groups."""
    die_with_parent(parent)
    leave_sigterm_to_the_run()
    begun = begin(fds)
    if begun is None:
        return 0
    line, order = begun
    try:
        member = _member(order, line, held)
    except Exception as error:
        tell_error(line, order["name"], error)
        return 1
    return member.serve()


class LossyFile(FileIO):
    """A file for a process's output. When the disk is full the output is lost, but the run goes on."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _member(order: Message, line: MessageSocket, held: Sequence[int]) -> Member:
    folder = RunFolder.open(order["run"])
    experiment = read_experiment(folder.read_run_info()["recipe"], folder.read_config())
    memory, bells = held[: len(order["memory"])], held[len(order["memory"]) :]
    pipes = dict(zip(order["groups"], zip(bells[::2], bells[1::2], strict=True), strict=True))
    shm = ShmTransport(dict(zip(order["memory"], memory, strict=True)), Doorbells(pipes, order["name"]))
    return Member(experiment, order, line, shm, folder=folder.path)
