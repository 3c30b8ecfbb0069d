"""The process of a trial: it trains the runs of one order, reports their progress, and stops when told.

An order is plain data: a recipe, a whole config, and runs, each with a folder, a seed and segments (`until` a share of the
budget, with these settings), perhaps with `changes` of live settings at given versions. An unfinished run is resumed from its
newest checkpoint; a finished one is not run again.
"""

from __future__ import annotations

import math
import select
import shutil
import signal
import threading
from pathlib import Path
from queue import SimpleQueue

from runnel.core.config import override, refuse_unused
from runnel.core.errors import CheckpointError, ConfigError, RunnelError, UnusedSettingError
from runnel.core.framing import Message
from runnel.core.state import State
from runnel.graphs.run_config import BUDGETS, RunConfig
from runnel.run import api, registry
from runnel.run.checkpoint import Checkpoints
from runnel.run.launchers.child import begin
from runnel.run.launchers.host import ControlLine, MemberLine
from runnel.run.ledger import Callbacks
from runnel.run.trust import check_named, runs_the_same
from runnel.track.folder import RunFolder
from runnel.track.status import has_ended, read_end
from runnel.tune.objective import NoMetric, Points, Row, compared_by, last_value, score

TINY = 1e-9
UNITS = {"total_steps": "steps", "total_updates": "version", "total_tokens": "tokens"}


class Talk:
    """The job's end of its line to the study: it sends points and receives verdicts."""

    def __init__(self, line: ControlLine) -> None:
        self._line, self._verdicts = line, SimpleQueue[bool]()
        self.interrupted = threading.Event()

    def take(self, message: Message) -> None:
        """Handle an incoming message, on any thread."""
        if message["kind"] == "verdict":
            self._verdicts.put(bool(message["go"]))
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """The study is gone or interrupted: end this job with a checkpoint."""
        self.interrupted.set()
        self._verdicts.put(True)  # wakes `ask`, which may wait for a verdict

    def send(self, message: Message) -> None:
        self._line.send(message)

    def ask(self, step: int, value: float) -> bool:
        """Report a point, and wait for the verdict: whether to go on."""
        if self.interrupted.is_set():
            return True
        self._line.send({"kind": "point", "step": step, "value": value})
        return self._verdicts.get()


# ------------------------------------------------------------------------------------------------------------ the process
def live(parent: int, fds: list[int], held: list[int]) -> int:
    """Main function of a job's process on this machine. It outlives its parent: then the trial ends with a checkpoint."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the fork server ignores it, and so would its forks
    begun = begin(fds)
    if begun is not None:
        line, order = begun
        run_job(order, line)
    return 0


def run_job(order: Message, line: MemberLine) -> None:
    """Do a job while a thread listens to its line."""
    folder = Path(order["log"]).parent
    if not folder.is_dir():
        fix = "does not exist on this node; give --out a folder that all nodes share"
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


def work(order: Message, talk: Talk) -> None:
    """Do what `order` says, and send how it ended: `done` with a value for each run, or `failed`."""
    try:
        talk.send({"kind": "done", **_play(order, talk)})
    except KeyboardInterrupt:
        talk.send({"kind": "done", "status": "interrupted", "values": [], "at": 0})
    except Exception as error:  # whatever a recipe raises fails its trial, not the study
        text = str(error) if isinstance(error, RunnelError) else f"{type(error).__name__}: {error}"
        refused = isinstance(error, ConfigError)  # these settings cannot be combined: nothing is broken
        talk.send({"kind": "failed", "error": text, "fatal": isinstance(error, NoMetric), "refused": refused})


def _play(order: Message, talk: Talk) -> Message:
    values: list[float] = []
    levels: list[float] = []
    at = 0
    for run in order["runs"]:
        for segment in run["segments"]:
            session = TrialSession(order, run, segment, talk, before=levels)
            status = session.reach()
            if status != "finished":
                return {"status": status, "values": values, "at": at}
        rows = RunFolder(run["path"]).read_rows()[0]
        values.append(score(rows, order["metric"], order["summary"], maximise=order["maximise"]))
        level = last_value(rows, session.metric)
        levels.append(values[-1] if level is None else level)
        at = session.at
    return {"status": "finished", "values": values, "at": at}


class TrialSession:
    """One segment of one run: trains it from its newest checkpoint to the end of the segment."""

    def __init__(self, order: Message, run: Message, segment: Message, talk: Talk, *, before: list[float]) -> None:
        self._order, self._run, self._segment, self._talk = order, run, segment, talk
        self._folder, self._before = RunFolder(run["path"]), before
        self._recipe = registry.load_recipe(order["recipe"])
        self._config = trial_config(self._recipe, order["config"], run, segment["settings"])
        known = {**order["config"], "space": order["space"]}
        check_named(self._config, order["recipe"], known)
        begun = self._folder.config.is_file() and self._folder.info.is_file()
        self._trust = begun and runs_the_same(self._folder, order["recipe"], known)
        total = int(order["total"])
        self.metric = compared_by(order["metric"], evaluates=self._config.eval.every > 0)
        self._points = Points(self.metric, total=total, offset=len(before) * total, after=order["after"])
        self._ordered, self._pruned = False, False
        self.at = 0
        """How far the run is, in the unit of its budget."""

    def reach(self) -> str:
        """Train to the end of the segment. Returns `finished`, `pruned` or `interrupted`."""
        manifest = self._newest()
        if manifest is not None and self._is_there(manifest):
            self.at = manifest[self._order["unit"]]
            return "finished"
        if self._talk.interrupted.is_set():
            return "interrupted"
        if manifest is not None:
            done = api.resume(
                self._folder.path,
                progress=False,
                trust=self._trust,
                on_update=self._on_update,
                on_eval=self._look,
                **self._segment["settings"],
            )
        else:
            if self._folder.path.is_dir():
                shutil.rmtree(self._folder.path)  # it ended before its first checkpoint, so there is nothing to resume
            own = Callbacks(on_update=self._on_update, on_eval=self._look)
            changes = self._run.get("changes", ())
            done = api.train_config(self._recipe.name, self._config, callbacks=own, progress=False, changes=changes)
        self.at = getattr(done, self._order["unit"])
        if self._pruned:
            return "pruned"
        return "interrupted" if done.interrupted else "finished"

    def _newest(self) -> State | None:
        """The manifest of the checkpoint to resume from. A checkpoint is useless if it holds parameters alone, or if the budget
        is spent and its version was never evaluated."""
        if not (self._folder.config.is_file() and self._folder.info.is_file()):
            return None
        try:
            manifest = Checkpoints(self._folder.checkpoints).newest(("params",))[1]
        except CheckpointError:
            return None
        useless = spent(self._config, manifest) >= 1.0 or not manifest.get("whole", True)
        return None if useless and not self._is_there(manifest) else manifest

    def _is_there(self, manifest: Row) -> bool:
        rows = self._folder.read_rows()[0]
        judged = self._order["metric"] != "eval" or any(
            r["kind"] == "eval" and r["version"] == manifest["version"] for r in rows
        )
        ended = bool(rows) and rows[-1]["kind"] == "end" and has_ended(read_end(rows[-1]))
        alone = len(self._run["segments"]) == 1 and self._segment["until"] >= 1.0 and not self._order["population"]
        return judged and (spent(self._config, manifest) >= self._segment["until"] - TINY or (ended and alone))

    def _on_update(self, row: Row) -> bool | None:
        if self._talk.interrupted.is_set() and not self._ordered:
            self._folder.add_order({"op": "stop"})
            self._ordered = True
        if row["progress"] < self._segment["until"] - TINY:
            return self._look(row)
        return None if row["progress"] >= 1.0 else False  # the segment is over; a run whose budget is spent ends by itself

    def _look(self, row: Row) -> bool | None:
        point = self._points.take(row)
        if point is None or self._order["population"] or self._pruned:
            return False if self._pruned else None
        step, value = point
        self._pruned = not self._talk.ask(step, sum([*self._before, value]) / (len(self._before) + 1))
        return False if self._pruned else None


def trial_config(recipe: registry.Recipe, config: Row, run: Row, settings: Row) -> RunConfig:
    """The config of one run: that of the study, with the run's own folder, seed and tags, and the settings that are tried."""
    path = Path(run["path"])
    own = {"out": str(path.parent), "name": path.name, "seed": run["seed"], "tags": run["tags"]}
    return tried(override(override(recipe.Config(), config), own), settings)


def tried(config: RunConfig, settings: Row) -> RunConfig:
    """`config` with the `settings` of a trial. A setting that counts only beside another one (atoms beside a distribution)
    keeps its value where the trial does not have that other one: it would be refused."""
    found = override(config, settings)
    try:
        refuse_unused(found, found.unused())
    except UnusedSettingError as error:
        if error.field in settings:
            return tried(config, {name: value for name, value in settings.items() if name != error.field})
    return found


def spent(config: RunConfig, manifest: Row) -> float:
    """The share of the budget that was spent before a checkpoint."""
    shares = [manifest[UNITS[name]] / getattr(config, name) for name in BUDGETS if getattr(config, name)]
    return min(1.0, max(shares, default=math.inf))
