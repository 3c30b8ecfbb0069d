"""Signals that are sent to all processes of a run at once: by `timeout`, systemd, a scheduler, the stop of a job."""

from __future__ import annotations

import os
import signal
from typing import Any


def leave_sigterm_to_the_run() -> None:
    """In a process that serves a run: SIGTERM is for the one that a person started, which ends the run with a checkpoint and
    then this process. Whatever is forked or started from here, and is not ours, dies of it as ever."""
    own = os.getpid()

    def handle(number: int, frame: Any) -> None:
        if os.getpid() != own:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, handle)  # not ignored: that would be inherited by programs that are started from here
