"""The process of a job, on this machine or as a Ray actor: it has a line to whoever gave the order (`job_pool.py`)."""

from __future__ import annotations

import select
import signal
import threading
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.core.framing import Message
from runnel.run.launchers.child import begin
from runnel.run.launchers.line import MemberLine
from runnel.tune.job import Talk, work


def live(parent: int, fds: list[int], held: list[int]) -> int:
    """What the process of a job does on this machine. It outlives its parent: without one, the trial ends with a checkpoint."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it, and so would its forks
    begun = begin(fds)
    if begun is not None:
        line, order = begun
        run_job(order, line)
    return 0


def run_job(order: Message, line: MemberLine) -> None:
    """Do a job, and listen to its line meanwhile."""
    folder = Path(order["log"]).parent
    if not folder.is_dir():
        fix = "is not there on this node; give --out a folder that all nodes share"
        return line.send({"kind": "failed", "error": str(ConfigError("out", str(folder), fix))})
    talk = Talk(line)
    threading.Thread(target=_listen, args=(line, talk), daemon=True).start()
    work(order, talk)


def _listen(line: MemberLine, talk: Talk) -> None:
    while not line.closed:
        for message in line.receive():
            talk.take(message)
        if not line.closed:
            select.select([line], [], [])
    talk.hang_up()
