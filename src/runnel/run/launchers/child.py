"""One process group of the local launcher: builds its own workers from the run folder and polls them.

It gets its orders over the control line: start, go, pause, save, evaluate, stop. What it runs it reads from the folder (the
recipe by name, the resolved config), so nothing is pickled. It dies with its parent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from runnel.core.clock import WallClock
from runnel.core.config import override
from runnel.core.errors import NonFiniteError
from runnel.flow.transports.shm import Doorbells, ShmTransport
from runnel.run import registry
from runnel.run.checkpoint import read_params, read_parts, write_parts
from runnel.run.group import Group
from runnel.run.launchers.line import Line, Message
from runnel.run.wiring import place, wire
from runnel.track.folder import RunFolder

ORDERS = "RUNNEL_GROUP"
BEAT_S = 0.25
STANDSTILL_S = 2.0
"""A loop that turns many times a second and was away for longer than this has been stopped from outside."""
REPORT_S = 0.05
WAIT_S = 0.5
PR_SET_PDEATHSIG = 1


def main() -> int:
    """Entry point of a child process; its orders are in the environment."""
    orders = json.loads(os.environ[ORDERS])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent(orders["parent"])
    with Path(orders["stack_file"]).open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        return _serve(orders)


def _serve(orders: dict[str, Any]) -> int:
    line = Line(socket.socket(fileno=orders["control"]))
    worker = orders["group"]
    member = None
    try:
        member = Member(orders, line)
        worker = ""
        member.run()
    except Exception as error:
        if not worker and member is not None and member.group.polling is not None:
            worker = member.group.polling.name
        line.send({"op": "error", "worker": worker or orders["group"], **_describe(error)})
        return 1
    finally:
        if member is not None:
            member.group.close()
    return 0


def _die_with_parent(parent: int) -> None:
    """Where the system can, be killed when the parent dies; elsewhere the closed control line ends the process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the launching process is gone")


def _describe(error: Exception) -> Message:
    trace = "".join(traceback.format_exception(error))
    found: Message = {"type": type(error).__name__, "text": str(error), "traceback": trace}
    if isinstance(error, NonFiniteError):
        found |= {"tensor": error.tensor, "step": error.step, "detail": error.detail}
    return found


class Member:
    """This process's part of the run."""

    def __init__(self, orders: dict[str, Any], line: Line) -> None:
        self.orders, self.line = orders, line
        folder = RunFolder.open(orders["run"])
        recipe = registry.load_recipe(folder.read_run_info()["recipe"])
        experiment = registry.build(recipe.name, override(recipe.Config(), folder.read_config()))
        torch.set_num_threads(experiment.config.placement.threads)
        pipes = {name: (read, write) for name, (read, write) in orders["pipes"].items()}
        self.shm = ShmTransport(orders["fds"], Doorbells(pipes, orders["group"]))
        self.config, self._clock = experiment.config, WallClock()
        self.group: Group = wire(
            experiment,
            place(experiment),
            orders["group"],
            clock=self._clock,
            shm=self.shm,
            progress=self._progress,
            incarnation=orders["epoch"],
        )
        self.running = False
        self.done = False
        self._next_report = 0.0
        threading.Thread(target=self._beat, daemon=True).start()
        line.send({"op": "ready"})

    def run(self) -> None:
        """Rounds while running; else wait for orders."""
        while not self.done:
            for message in self.line.receive():
                self._obey(message)
            if self.line.closed:
                return
            work = self.group.round() if self.running else 0
            self._report(force=False)
            if not work and not self.done:
                self.shm.wait(WAIT_S if not self.group.has_events() else REPORT_S, self.line.fileno())

    # -------------------------------------------------------------------------------------------------------- orders
    def _obey(self, message: Message) -> None:
        match message["op"]:
            case "start":
                self._start(message)
            case "go":
                self.running = True
            case "pause":
                self.running = False
                self._report(force=True)
                self.line.send({"op": "paused"})
            case "save":
                self._save(message)
            case "evaluate":
                self.group.evaluate()
                self._report(force=True)
                self.line.send({"op": "evaluated"})
            case "stop":
                self.done = True

    def _start(self, message: Message) -> None:
        path = message["checkpoint"]
        fresh = self.group.start(read_parts(Path(path)) if path else None, epoch=self.orders["epoch"])
        if message["init_from"]:
            self.group.warm_start(read_params(Path(message["init_from"])), self.config.init_from)
        self.line.send({"op": "started", "fresh": fresh})

    def _save(self, message: Message) -> None:
        for worker in message["abandon"]:
            self.group.abandon(worker)
        self.group.check()
        files = write_parts(Path(message["path"]), self.group.snapshot())
        accounts = {name: vars(account) for name, account in self.group.accounting().items()}
        self.line.send({"op": "saved", "files": files, "streams": accounts})

    # ------------------------------------------------------------------------------------------------------- telling
    def _report(self, *, force: bool) -> None:
        now = time.monotonic()
        if not force and now < self._next_report:
            return
        self._next_report = now + REPORT_S
        events = self.group.collect()
        if events or force:
            self.line.send({"op": "events", "events": events, "stages": self.group.stages()})

    def _beat(self) -> None:
        while not self.line.closed:
            now = self._clock.now()
            current = {w.name: [w.timer.current[0], now - w.timer.current[1]] for w in self.group.workers}
            self.line.send({"op": "beat", "stages": current, "waits": self.group.waits() if self.running else {}})
            time.sleep(BEAT_S)
            if self._clock.now() - now > STANDSTILL_S:  # all of the process stood still: no stage hangs
                for worker in self.group.workers:
                    worker.timer.touch()

    def _progress(self, done: int, total: int) -> None:
        evaluator = self.group.evaluator
        if evaluator is not None:
            evaluator.timer.touch()
        self.line.send({"op": "tick", "text": f"evaluating {done}/{total}"})
