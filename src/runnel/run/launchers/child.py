"""One process group of the local launcher: a child process with its orders in the environment. It dies with its parent."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from runnel.flow.transports.shm import Doorbells, ShmTransport
from runnel.run.launchers.line import Line
from runnel.run.launchers.member import Member, read_experiment, tell_error
from runnel.track.folder import RunFolder

ORDERS = "RUNNEL_GROUP"
PR_SET_PDEATHSIG = 1


def main() -> int:
    """Entry point of a child process."""
    orders = json.loads(os.environ[ORDERS])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(orders["parent"])
    with Path(orders["stack_file"]).open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        line = Line(socket.socket(fileno=orders["control"]))
        try:
            member = _member(orders, line)
        except Exception as error:
            tell_error(line, orders["group"], error)
            return 1
        return member.serve()


def _member(orders: dict[str, Any], line: Line) -> Member:
    folder = RunFolder.open(orders["run"])
    experiment = read_experiment(folder.read_run_info()["recipe"], folder.read_config())
    pipes = {name: (read, write) for name, (read, write) in orders["pipes"].items()}
    shm = ShmTransport(orders["fds"], Doorbells(pipes, orders["group"]))
    numbers = {"epoch": orders["epoch"], "incarnation": orders["incarnation"]}
    return Member(experiment, orders["group"], line, shm, folder=folder.path, **numbers)


def _die_with_parent(parent: int) -> None:
    """Where the system can, be killed when the parent dies; elsewhere the closed control line ends the process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the launching process is gone")
