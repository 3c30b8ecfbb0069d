"""The files of the package that one training iteration enters, in the order in which it first enters them.

A run is played in process and in its plain form: `compiled="off"` for networks, and without compiled loops for language models
(torch does the same). `sys.setprofile` sees every call, in all threads. The iteration begins when the actor is polled for the
first time after update `WARM_UP`, so nothing of the set-up counts. It ends when the next update is over: the trainer has taken
a batch, made its optimiser steps, published the version and released the batch.

The way of a sample leads through workers. So what is called inside of a worker's poll counts, and what other threads call. What
the launcher does between two polls (whether to stop, orders, rows of metrics) is kept apart.

Every function of the package that is called in this time counts, also generators, lambdas and special methods. Two things do
not: the bodies of modules and classes (they run when a module is imported), and methods that `dataclasses` writes (no file
holds them).
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType

import runnel as rl
from runnel.kernels.lm.numba.loops import without_loops

PACKAGE = Path(rl.__file__).parent
WARM_UP = 3
"""Updates before the iteration that is looked at."""
POLLS = "flow/workers/"
"""The files whose `poll` methods are the polls of workers."""
BEGINS = ("flow/workers/actor.py", "ActorWorker.poll")
UPDATES = ("flow/workers/trainer.py", "TrainerWorker._update")
ENDS = ("flow/workers/trainer.py", "TrainerWorker.poll")
PLAIN: Mapping[str, Mapping[str, object]] = {
    "ppo": {"env": "CartPole-v1", "compiled": "off", "num_actors": 1, "num_envs": 4, "num_steps": 32, "eval": {"every": 0}},
    "reverse": {"warmup_updates": 0, "num_prompts": 4, "eval": {"episodes": 0}, "record": {"groups_every": 0}},
}
"""The runs that are looked at: PPO on CartPole-v1, and GRPO on the task of reversing words."""

Functions = dict[str, list[str]]
"""Names of functions by file, both in the order of the first call."""


class CallProfile:
    """For `sys.setprofile`: which functions of the package are called between update `WARM_UP` and the next one."""

    def __init__(self) -> None:
        self.iteration: Functions = {}
        self.between: Functions = {}
        """Called by the launcher between two polls, from the iteration's start to the start of the next one."""
        self._polls = 0
        """Calls of `poll` that the main thread is in: a kind of worker may call that of its base."""
        self._num_updates = 0
        self._notes: Functions | None = None
        self._known: dict[CodeType, tuple[str, str] | None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code not in self._known:
            self._known[code] = _place(code)
        place = self._known[code]
        if place is None or event not in ("call", "return"):
            return
        is_poll = place[0].startswith(POLLS) and place[1].endswith(".poll")
        if event == "call":
            self._polls += is_poll
            self._note(*place)
        else:
            self._polls -= is_poll
            self._num_updates += place == UPDATES
            if place == ENDS and self._num_updates == WARM_UP + 1 and self._notes is self.iteration:
                self._notes = self.between

    def _note(self, file: str, function: str) -> None:
        if (file, function) == BEGINS and self._num_updates >= WARM_UP:
            self._notes = self.iteration if self._num_updates == WARM_UP else None
        inside = self._polls or threading.current_thread() is not threading.main_thread()
        notes = self._notes if inside or self._notes is None else self.between
        if notes is not None and function not in (known := notes.setdefault(file, [])):
            known.append(function)


def _place(code: CodeType) -> tuple[str, str] | None:
    """File and function; None for other packages, and for bodies of modules and classes."""
    path = Path(code.co_filename)
    if not code.co_flags & inspect.CO_OPTIMIZED or not path.is_relative_to(PACKAGE):
        return None
    return path.relative_to(PACKAGE).as_posix(), code.co_qualname.replace(".<locals>", "")


def profile(recipe: str) -> CallProfile:
    """Train `recipe` for one update more than the iteration needs, and return what was called."""
    found = CallProfile()
    settings = {**PLAIN[recipe], "total_updates": WARM_UP + 2, "launcher": "inproc"}
    with tempfile.TemporaryDirectory() as folder, without_loops():
        threading.setprofile(found)
        sys.setprofile(found)
        try:
            rl.train(recipe, out=folder, progress=False, **settings)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    return found
