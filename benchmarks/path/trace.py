"""The files of the package that one training iteration enters, in the order in which it first enters them.

A run is played in process and in its plain form (`compiled="off"`) under `sys.setprofile`, in all threads. The iteration that
counts begins when an actor is polled for the first time after update `WARM_UP` and ends when the next update is over: the
trainer has taken a batch, made its optimiser steps and published the version, and the run has written down what was said in
between. Every function of the package that runs in this time counts, generators, lambdas and methods of the standard protocols
included. Only two things do not: the body of a module or class (an import), and what `dataclasses` writes (it is in no file).
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import runnel as rl

PACKAGE = Path(rl.__file__).parent
WARM_UP = 3
"""Updates before the iteration that counts."""

Calls = dict[str, dict[str, int]]
"""By file, its functions and how often each was called; both in the order of the first call."""


class PathProfile:
    """Notes each call of a function of the package between update `WARM_UP` and the next one."""

    def __init__(self) -> None:
        self.calls: Calls = {}
        self.after_step: Calls = {}
        """What was called when the update was over, but the iteration was not."""
        self.updates = 0
        self._open = False
        self._names: dict[CodeType, tuple[str, str] | None] = {}

    def __call__(self, frame: FrameType, event: str, _arg: object) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = _named(code)
        name = self._names[code]
        if name is None:
            return
        if event == "return":
            self.updates += name == ("flow/workers/trainer.py", "TrainerWorker._update")
            return
        if name == ("flow/workers/actor.py", "ActorWorker.poll"):
            self._open = self.updates == WARM_UP
        if self._open or self.updates == WARM_UP + 1:
            pass
