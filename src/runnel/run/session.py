"""One session of a run, from its start or resume to its end: the state and the duties that all launchers share."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from runnel.core.clock import Clock
from runnel.core.errors import CheckpointError, ConfigError, RunnelError
from runnel.core.state import State
from runnel.flow.params import Kept
from runnel.flow.workers.trainer import Arrival
from runnel.graphs.experiment import Experiment
from runnel.run.balance import Balance
from runnel.run.best import BestParams
from runnel.run.checkpoint import Checkpoints, Manifest, fell_back, read_parts
from runnel.run.ledger import Ledger
from runnel.run.live_settings import LiveSettings
from runnel.run.names import JOB_RUN
from runnel.run.new_tasks import TaskOrders
from runnel.run.replan import Replan
from runnel.run.restorable import check_restorable
from runnel.track.folder import Row, RunFolder

ORDERS_S = 1.0
IN_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable that Ray gives to whatever it runs as a job."""


@dataclass
class Session:
    """Shared by launchers: the experiment, its folder, its ledger, and what it starts from."""

    experiment: Experiment
    groups: dict[str, list[str]]
    folder: RunFolder
    ledger: Ledger
    checkpoints: Checkpoints
    clock: Clock
    epoch: int = 0
    resume_from: Path | None = None
    states: dict[str, State] | None = None
    warm_params: dict[str, Tensor] | None = None
    warm_learner: Path | None = None
    """The checkpoint of another run whose whole learner this one takes over."""
    notes: list[str] = field(default_factory=list)
    """What was chosen for the user when the run was made, or changed when it was resumed."""
    warnings: list[str] = field(default_factory=list)
    """What the user was warned of before it started."""
    interrupted: threading.Event = field(default_factory=threading.Event)
    live: LiveSettings = field(init=False)
    """The settings that may change while the run goes on."""
    new_tasks: TaskOrders = field(init=False)
    """The tasks that are added while the run goes on."""
    beginning: State = field(default_factory=dict)
    """What the ledger held before the first start; also of a run that was resumed."""
    steering: Balance | Replan | None = None
    """Changes the number of workers while the run goes on; each start begins with those of the config."""
    _looked: float = 0.0
    _orders_read: int = 0
    _heard: list[Row] = field(default_factory=list)
    _saving: float = 0.0
    started: bool = False
    """Whether all workers are set up. A checkpoint that does not fit raises its error before this is True."""
    held: bool = False
    """Whether writes to the folder are held back: a resume that cannot start leaves the run as it was."""
    _later: list[Callable[[], None]] = field(default_factory=list)
    _refused: dict[str, str] = field(default_factory=dict)
    """Checkpoints that could not be restored, by name, and why."""

    def __post_init__(self) -> None:
        self.live = LiveSettings(self.folder, self.experiment.config)
        # from here on, not from the first round on: until then a run that starts slowly may have been given orders
        _, self._orders_read = self.folder.read_orders(-1)
        self.new_tasks = TaskOrders(self.folder, self.experiment.room)
        self._heard += self.new_tasks.unanswered(self.folder)

    def hold(self) -> None:
        """Write nothing into the run's folder before `begin`."""
        self.held = True
        self.ledger.hold()

    def begin(self, live: Mapping[str, Row]) -> None:
        """All workers are set up: do what was held back. `live` says which live settings the trainers take."""
        self.started = True
        balance = Balance.of(self.experiment.config, self.experiment.leader.name)
        self.steering = balance or Replan.of(self.experiment, self.groups)
        # the order matters: cut files back to the checkpoint before rows are appended to them
        if self.held:
            self.held = False
            self.ledger.cut()
            for do in self._later:
                do()
            self._later.clear()
            self.ledger.release()
        self.live.begin(live)
        self._refused.clear()  # these are renamed by now, and new checkpoints may get their old names

    def when_started(self, do: Callable[[], None]) -> None:
        """Do something that changes the run's folder: now, or when its workers are set up."""
        if self.held:
            self._later.append(do)
        else:
            do()

    def restore(self, path: Path, manifest: Manifest, problems: Sequence[str]) -> None:
        """Go on from a checkpoint, in the next epoch, and warn if a newer one is damaged."""
        self.resume_from, self.epoch = path, max(self.epoch, manifest["epoch"]) + 1
        self.states = read_parts(path)
        if "ledger" not in self.states:
            raise CheckpointError(f"checkpoint {path} has no ledger; it was not written by a run")
        self.ledger.restore(self.states["ledger"])
        for problem in problems:
            self.ledger.note(fell_back(path, problem), level="warning")
        if problems:
            self.when_started(lambda: self._set_aside([p for p in self.checkpoints.finished() if p.name > path.name]))
        self.ledger.note(f"resumed from version {manifest['version']} (epoch {self.epoch})", what="resume")

    def go_back(self, why: str) -> None:
        """Part of the run is lost: go on from the newest good checkpoint, or from the start if there is none."""
        problem = ""
        try:
            self.restore(*self.checkpoints.newest(refused=self._refused))
        except CheckpointError as error:
            if self._refused:
                raise
            problem = str(error) if self.checkpoints.finished() else ""
            self._start_over()
        if problem:
            self.ledger.note(f"started again from version 0: {problem}", level="warning")
            print(f"runnel: warning: started again from version 0: {problem}", file=sys.stderr)
        self.ledger.lost(why, f"going on from version {self.ledger.version}")
        print(f"runnel: warning: {why}; going on from version {self.ledger.version}", file=sys.stderr)

    def fall_back(self, error: Exception) -> None:
        """The chosen checkpoint could not be restored because of `error`: go on from the one before.

        If none is left, raise, and leave the run's folder as it is. The files are sound, so they can be restored once the
        cause of the error is mended.
        """
        if self.resume_from is None:
            raise error
        self._refused[self.resume_from.name] = _cause(error)
        if not self.held:
            self.hold()
        try:
            self.restore(*self.checkpoints.newest(refused=self._refused))
        except CheckpointError as none:
            if self.started:  # the rows of a run that was at work stay, and say why it ended
                self.held = False
                self.ledger.release()
            raise none from error

    def _start_over(self) -> None:
        """From version 0, in the next epoch. Checkpoints that cannot be used are kept, under other names."""
        self.resume_from, self.states, self.epoch = None, None, self.epoch + 1
        self._set_aside(self.checkpoints.finished())
        self.ledger.restore(self.beginning)

    def _set_aside(self, checkpoints: Sequence[Path]) -> None:
        """Rename checkpoints newer than the restored one, so that none of them is later taken for the newest."""
        for path in checkpoints:
            path.rename(path.with_name(f"damaged-{path.name}-{self.epoch}"))

    def orders(self) -> list[Row]:
        """The orders (stop, checkpoint, scale) that people gave since the last call, and those that the run gives itself."""
        self.listen()
        found, self._heard = self._heard, []
        return found + self._steered(found)

    def _steered(self, given: Sequence[Row]) -> list[Row]:
        """An order to change the number of workers, if `staleness.balance` or `placement.replan_s` asks for one."""
        if self.steering is None:
            return []
        for order in given:
            if order["op"] == "scale":
                self.steering.hear(order)
        found = self.steering.look(self.clock.now(), self.ledger)
        if found is None:
            return []
        numbers = dict(found.numbers)
        self.ledger.note(found.why, what=found.what, about={"numbers": numbers, **found.about} if numbers else found.about)
        return [{"op": "scale", "numbers": numbers}] if numbers else []

    def listen(self) -> None:
        """Read new orders, at most once a second. Long operations call it too, because it carries out a stop."""
        now = self.clock.now()
        if now - self._looked < ORDERS_S:
            return
        self._looked = now
        found, self._orders_read = self.folder.read_orders(self._orders_read)
        self._heard += found
        for order in found:
            if order["op"] == "stop":
                self.ledger.note("stopped by order", what="order")
                self.interrupted.set()
            elif order["op"] == "checkpoint":
                self.ledger.note("a checkpoint was ordered", what="order")

    def settings_ordered(self, orders: Sequence[Row]) -> dict[str, object]:
        """The new values of live settings in `orders`. An order that cannot be followed is told, and changes nothing."""
        found: dict[str, object] = {}
        for order in orders:
            if order["op"] == "set":
                try:
                    self.live.check(found | order["settings"])
                except ConfigError as error:
                    self.ledger.note(f"refused: {error}", level="warning", what="order")
                else:
                    found |= order["settings"]
        return found

    def tasks_ordered(self, orders: Sequence[Row]) -> bool:
        """Whether tasks wait to be added, those of `orders` among them."""
        self.new_tasks.hear(orders, lambda text, level: self.ledger.note(text, level=level, what="order"))
        return bool(self.new_tasks.waiting)

    def added_at(self, next_versions: Mapping[str, int]) -> list[Arrival]:
        """Take the tasks that wait, by the trainers' next versions: they count from the first version that is not published."""
        return self.new_tasks.record(next_versions[self.experiment.leader.name] + 1)

    def should_stop(self) -> str | None:
        """The status to end with, or None to go on."""
        if self.interrupted.is_set():
            return "interrupted"
        if self.ledger.stop_reason is not None:
            return self.ledger.stop_status
        if self.ledger.progress >= 1.0:
            return "finished"
        return None

    def checkpoint_due(self, last: int) -> bool:
        every = self.experiment.config.checkpoint.every
        return every != "never" and every > 0 and self.ledger.version // every > last // every

    def begin_checkpoint(self) -> Path:
        """A folder for the parts of a checkpoint."""
        self._saving = self.clock.now()
        return self.checkpoints.begin(self.ledger.version)

    def checkpoint_kinds(self, *, last: bool) -> list[bool]:
        """Whether what is saved is the whole run, as the run is set; the last one is tried without its state if that is too
        large for the disk: what was learned must not be lost."""
        whole = self.experiment.config.checkpoint.whole
        return [True, False] if whole and last else [whole]

    def tell_damage(self, told: Sequence[str]) -> None:
        """Files of earlier checkpoints were found damaged while a new one was written."""
        for text in told:
            self.ledger.note(text, level="warning")
            print(f"runnel: warning: {text}", file=sys.stderr)

    def drop_checkpoint(self, problem: str) -> None:
        """Remove a checkpoint that did not fit on the disk, warn, and go on."""
        self.checkpoints.drop()
        newest = self.checkpoints.newest_whole()
        text = f"{problem}; {'there is none yet' if newest is None else f'checkpoint {newest.name} stands'}"
        self.ledger.note(text, level="warning")
        if self.ledger.view is None:
            print(f"runnel: warning: {text}", file=sys.stderr)

    def finish_checkpoint(
        self, path: Path, files: dict[str, str], *, left_out: list[str], whole: bool, kept: Kept | None = None
    ) -> Path:
        """See that it can be restored, add the manifest, tell the user. `kept` are the versions of the parameter channels at
        the barrier."""
        ledger = self.ledger
        if whole:
            check_restorable(path, files, needed=self._needed(), kept=kept or {})
        manifest: Manifest = {
            "version": ledger.version,
            "steps": ledger.steps,
            "tokens": ledger.tokens,
            "epoch": self.epoch,
            "left_out": left_out,
            "whole": whole,
            "files": files,
        }
        done = self.checkpoints.finish(path, manifest)
        BestParams(self.folder.best).prune(int(p.name.partition("-")[0]) for p in self.checkpoints.finished())
        if self.experiment.config.checkpoint.whole and not whole:
            ledger.note(f"{done} has the parameters alone, so that what was learned is not lost", level="warning")
        ledger.checkpoint(done, ledger.version, seconds=self.clock.now() - self._saving)
        return done

    def _needed(self) -> list[str]:
        """The parts without which the run could not go on; stateless workers may start afresh."""
        e = self.experiment
        workers = [*(t.name for t in e.trainers), *(t.name for t in e.transforms if not e.is_stateless(t.name))]
        parts = [f"worker-{name}" for name in workers] + [f"stream-{s.name}" for s in e.streams]
        return ["ledger", *parts, *(f"channel-{name}" for name in e.channels)]

    def how_to_go_on(self, raising: str = "") -> str:
        """What a person does after a failure. `raising` names a limit that may have been too small."""
        if not raising:
            return how_to_go_on(self.folder)
        section, _, name = raising.partition(".")
        now = getattr(getattr(self.experiment.config, section), name)
        more = f" --{raising.replace('_', '-')} {5 * now:g}"
        return f"if it only needs longer, raise {raising}: {how_to_go_on(self.folder, more)}"


def how_to_go_on(folder: RunFolder, flags: str = "") -> str:
    """From which checkpoint a run can go on, and with which command."""
    newest = Checkpoints(folder.checkpoints).newest_whole()
    if newest is None:
        return f"no checkpoint was written yet, so start it again{f' with{flags}' if flags else ''}"
    return f"checkpoint {newest.name} stands; go on with `runnel resume {shlex.quote(str(folder.path))}{flags}`"


def _cause(error: Exception) -> str:
    """Why a restore failed. An error of another library means that what the checkpoint is loaded into has changed."""
    if isinstance(error, RunnelError | OSError):
        return str(error)
    return f"the environment, the network or the data is not what it was ({type(error).__name__}: {error})"


def tell_job(path: Path) -> None:
    """In a job of a Ray cluster, print the path of the run. Ray passes on nothing of a job but its output."""
    if IN_A_JOB in os.environ:
        print(f"{JOB_RUN}{path.resolve()}", flush=True)


@contextmanager
def catch_signals(interrupted: threading.Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the run at the next boundary, with a checkpoint (an evaluation is given up for that); a second
    Ctrl-C ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: object) -> None:
        if interrupted.is_set() and signum == signal.SIGINT:
            raise KeyboardInterrupt
        interrupted.set()

    before = {s: signal.signal(s, handle) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
