"""The process of one group of a run, on any launcher: builds the group's workers and polls them.

It gets orders over a control line: start, go, pause, set, save, abandon, evaluate, interrupt, stop. The experiment arrives as
data (the recipe's name and the resolved config), so nothing is pickled.
"""

from __future__ import annotations

import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from runnel.core.clock import WallClock
from runnel.core.config import override
from runnel.core.disk import refused
from runnel.core.errors import DiskError, EvaluationInterrupted, NonFiniteError, RunnelError
from runnel.core.framing import Message
from runnel.core.user_code import frames, is_users
from runnel.core.worker import count_alone, progressed
from runnel.graphs.experiment import Experiment
from runnel.run import registry
from runnel.run.best import BestParams
from runnel.run.checkpoint import read_learner, read_params, read_parts, write_parts
from runnel.run.group import ProcessGroup
from runnel.run.launchers.heartbeat import BEAT_S, Heartbeat
from runnel.run.launchers.host import ControlLine, MemberLine
from runnel.run.tracing import open_recorder
from runnel.run.wiring import Outer, place, wire
from runnel.track.folder import RunFolder

REPORT_S = 0.05
STAGES_S = 1.0
WAIT_S = 0.5


def read_experiment(recipe: str, config: dict[str, Any]) -> Experiment:
    """Build the experiment of a run from its recipe's name and its config as data."""
    module = registry.load_recipe(recipe)
    return registry.build(module.name, override(module.Config(), config))


class Member:
    """The group that this process runs. The order's `incarnation` differs at each start of the process: its restart counter."""

    def __init__(self, experiment: Experiment, order: Message, line: MemberLine, outer: Outer, *, folder: Path) -> None:
        group, epoch, incarnation = order["name"], order["epoch"], order["incarnation"]
        torch.set_num_threads(experiment.config.placement.threads)
        count_alone()
        # A user's learner does not report progress itself, but every optimiser step of it does.
        register_optimizer_step_post_hook(lambda *_: progressed())
        self.line, self.outer, self._epoch = line, outer, epoch
        self.config, self._clock, self._leader = experiment.config, WallClock(), experiment.leader.name
        self.running = False
        self.done = False
        self._heartbeat = Heartbeat(self._clock)
        threading.Thread(target=self._beat, daemon=True).start()  # before `wire`: building workers takes long
        self.group: ProcessGroup = wire(
            experiment,
            place(experiment),
            group,
            clock=self._clock,
            outer=outer,
            progress=self._progress,
            incarnation=incarnation,
            recorder=open_recorder(self.config, folder, group, self._clock, epoch=epoch, incarnation=incarnation),
            keep=BestParams(RunFolder(folder).best).offer,
        )
        self._heartbeat.workers = self.group.workers
        self._next_report, self._next_stages, self._next_look = 0.0, 0.0, 0.0
        self._later: list[Message] = []
        """Orders that arrived during an evaluation; they are obeyed after it."""
        self._interrupted = False
        line.send({"op": "ready"})

    def run(self) -> None:
        """Poll the workers while the group runs; otherwise wait for orders."""
        while not self.done:
            later, self._later = self._later, []
            for message in (*later, *self.line.receive()):
                self._obey(message)
            if self.line.closed:
                return
            work = self.group.round() if self.running else 0
            self._report(force=False)
            if not work and not self.done:
                self.outer.wait(WAIT_S if not self.group.has_events() else REPORT_S, self.line.fileno())

    def serve(self) -> int:
        """Call `run`, then close the workers; errors are sent over the line. Returns an exit code."""
        try:
            self.run()
        except Exception as error:
            polling = self.group.polling
            tell_error(self.line, polling.name if polling is not None else self.group.name, error)
            return 1
        finally:
            self.group.close()
        return 0

    # -------------------------------------------------------------------------------------------------------- orders
    def _obey(self, message: Message) -> None:
        match message["op"]:
            case "start":
                self._start(message)
            case "go":
                self.running = True
            case "pause":
                self.running = False
                self.outer.flush()
                self._report(force=True)
                self.line.send({"op": "paused", "kept": self.group.kept(), "next": self.group.next_versions()})
            case "set":
                self.group.change_settings(message["changes"])
                self.group.add_tasks(message["tasks"])
            case "save":
                self._save(message)
            case "abandon":
                for worker in message["workers"]:
                    self.group.abandon(worker)
            case "evaluate":
                whole = self.group.evaluate()
                self._report(force=True)
                self.line.send({"op": "evaluated", "whole": whole})
            case "interrupt":
                self._interrupted = True
            case "stop":
                self.done = True

    def _start(self, message: Message) -> None:
        path = message["checkpoint"]
        self.group.change_settings(message["changes"])
        self.group.add_tasks(message["tasks"])
        if path:
            self.outer.catch_up()
        if message.get("rejoins"):
            told = self.group.rejoin(read_parts(Path(path)) if path else None)
            self.line.send({"op": "started", "fresh": [], "told": told})
            return
        fresh = self.group.start(read_parts(Path(path)) if path else None, epoch=self._epoch)
        if source := message["init_from"]:
            if self.config.init == "learner":
                self.group.take_learner(read_learner(Path(source), self._leader), self.config.init_from)
            else:
                self.group.warm_start(read_params(Path(source)), self.config.init_from)
        self.line.send({"op": "started", "fresh": fresh, "live": self.group.live()})

    def _save(self, message: Message) -> None:
        for worker in message["abandon"]:
            self.group.abandon(worker)
        self.group.check()
        files, full, told = dict[str, str](), "", list[str]()
        path = self._heartbeat.writing = Path(message["path"])
        try:
            parts = self.group.snapshot(whole=message["whole"], kept=message["kept"])
            files = write_parts(path, parts, copies=self.config.checkpoint.copies, told=told)
        except DiskError as error:
            full = str(error)
        finally:
            self._heartbeat.writing = None
        accounts = {name: vars(account) for name, account in self.group.accounting().items()}
        self.line.send({"op": "saved", "files": files, "streams": accounts, "full": full, "told": told})

    # ------------------------------------------------------------------------------------------------------- telling
    def _report(self, *, force: bool) -> None:
        now = time.monotonic()
        if not force and now < self._next_report:
            return
        self._next_report = now + REPORT_S
        events = self.group.collect()
        if events or force:
            self.line.send({"op": "events", "events": events, "stages": self.group.stages()})
            self._next_stages = now + STAGES_S
        elif now >= self._next_stages:  # a policy worker may have no event for hours
            self.line.send({"op": "stages", "stages": self.group.stages()})
            self._next_stages = now + STAGES_S

    def _beat(self) -> None:
        while not self.line.closed and not self.done:
            waits = self.group.waits() if self.running else {}
            self.line.send({"op": "beat", "waits": waits, **self._heartbeat.look()})
            time.sleep(BEAT_S)

    def _progress(self, done: int, total: int) -> None:
        progressed()
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + REPORT_S
            self.line.send({"op": "tick", "text": f"evaluating {done}/{total}"})
            self._later += self.line.receive()
            self._interrupted = self._interrupted or any(m["op"] in ("interrupt", "stop") for m in self._later)
        if self._interrupted or self.line.closed:
            raise EvaluationInterrupted


def tell_error(line: ControlLine, worker: str, error: Exception) -> None:
    """Send the error of a group that failed: with the lines of the user's code; a full traceback only for an internal error."""
    if getattr(error, "filename", None):  # without a file name, only the traceback tells which write failed
        error = refused(error, Path(tempfile.gettempdir())) or error
    known = isinstance(error, RunnelError) or is_users(error)
    text = str(error) + ("" if isinstance(error, RunnelError) else frames(error))
    notes = "\n".join(getattr(error, "__notes__", []))
    trace = notes if known else "".join(traceback.format_exception(error))
    found: Message = {"type": type(error).__name__, "text": text, "traceback": trace}
    if isinstance(error, NonFiniteError):
        found |= {"tensor": error.tensor, "step": error.step, "detail": error.detail}
    line.send({"op": "error", "worker": worker, **found})
