"""Run a study, new or resumed: `search` and `resume`, which the command line calls too."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from functools import partial
from pathlib import Path

from runnel.core.config import override
from runnel.core.errors import ConfigError, RunnelError
from runnel.core.framing import Message
from runnel.core.state import State
from runnel.eval.aggregates import over_seeds
from runnel.graphs import user_objects
from runnel.run.launchers import check_ray
from runnel.run.launchers.host import ProcessHost
from runnel.run.launchers.local import LocalHost
from runnel.run.session import catch_signals
from runnel.run.trust import check_code, remember
from runnel.track.folder import RunFolder
from runnel.track.status import make_end
from runnel.tune.command import train_command
from runnel.tune.folder import Book, StudyFolder, Trial, read_json, study_name, write_json
from runnel.tune.job import trial_config
from runnel.tune.job_pool import JobPool
from runnel.tune.pbt import TrialPopulation
from runnel.tune.settings import Setup, TuneConfig, check_same, make_setup, named_in, read_setup
from runnel.tune.show import View
from runnel.tune.trials import TrialSearch

EARLY = ("gymnasium", "safetensors.torch")
"""Modules that the fork server of a study imports before the first trial."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
RELEASE_S = 60.0
"""Time for trials whose tuning process was killed to end by themselves, with a checkpoint."""


@dataclasses.dataclass(frozen=True)
class Study:
    """A study that has ended or was stopped: its folder, how it ended (`finished`, `stopped`), and its best trial."""

    path: Path
    status: str
    best: State | None
    """best.json: number, params, command, value (optimistic, because it selected the trial), and test if there was one."""

    def read(self) -> State:
        """study.json: every trial."""
        return read_json(StudyFolder(self.path).study)

    @property
    def trials(self) -> list[Trial]:
        found: list[Trial] = self.read()["trials"]
        return found


def search(
    recipe: str,
    /,
    *,
    space: Sequence[str] | Mapping[str, str] = (),
    out: str | Path = "",
    live: bool = False,
    options: Mapping[str, object] | None = None,
    **settings: object,
) -> Study:
    """Search for good settings of `recipe`, and return the study.

    `space` says what to try: `{"ppo.lr": "log(1e-5, 1e-2)", "ppo.clip_range": "{0.1, 0.2}"}`; default: by algorithm.
    `options` are those of `runnel tune` (`TuneConfig`): trials, sampler, pruner, workers, test_seeds, ... `settings` are fields
    of the recipe's config, the same in every trial. A study that was begun in `out` goes on.
    """
    words = tuple(f"{k}={v}" for k, v in space.items()) if isinstance(space, Mapping) else tuple(space)
    chosen = override(override(TuneConfig(), dict(options or {})), {"search": words})
    named, objects = user_objects.name_objects(settings)
    for name, value in objects.items():
        fix = "trials run in processes of their own, which cannot load it; put it in a file (path/to/file.py:name)"
        raise ConfigError(name.removeprefix("live:"), value, fix)
    return start(make_setup(recipe, named, chosen), out, live=live)


def resume(folder: str | Path, *, live: bool = False, trust: bool = False, **options: object) -> Study:
    """Resume a study. `trials`, `workers`, `test_seeds` and `on` may have new values. With `trust=True`, a study that you did
    not start on this machine may run the code that its folder names."""
    where = StudyFolder(folder)
    data = read_json(where.settings)
    own = check_code(where.path, str(data["recipe"]), named_in(data), trust=trust, training=True)
    setup = read_setup(data, options)
    check_same(data, setup, where.path)
    return start(setup, where.path, live=live, own=own)


def start(setup: Setup, out: str | Path, *, live: bool = False, own: bool = True) -> Study:
    """Start or resume a study in `out` (if empty, a new folder in runs/). `own` says that the user of this machine named the
    code that it runs."""
    if setup.options.on == "ray":
        check_ray("on")
    folder = StudyFolder(out or Path("runs") / study_name(setup, datetime.now()))
    folder.make()
    with folder.held():
        if folder.exists():
            check_same(read_json(folder.settings), setup, folder.path)
        write_json(folder.settings, setup.to_data())
        if own:
            remember(folder.path, setup.recipe.name, named_in(setup.to_data()))
        _await_orphans(folder)
        return StudySession(setup, folder, live=live).run()


def _await_orphans(folder: StudyFolder) -> None:
    """Wait for trials of a tuning process that was killed. They end by themselves."""
    deadline = time.monotonic() + RELEASE_S
    for lock in [*folder.trials.glob("*/.lock"), *folder.test.glob("*/.lock")]:
        while RunFolder(lock.parent).is_held():
            if time.monotonic() > deadline:
                raise ConfigError("out", str(folder.path), f"{lock.parent.name} is still being trained; stop that process")
            time.sleep(0.1)


def _make_host(setup: Setup, folder: StudyFolder, stack: ExitStack) -> ProcessHost:
    """The process host of the study's jobs. `stack` closes it."""
    config = setup.config
    if setup.options.on == "ray":
        from runnel.run.launchers.ray_head import connected
        from runnel.run.launchers.ray_host import RayHost

        head = stack.enter_context(connected(config.cluster.address, setup.options.workers * config.placement.threads))
        needs = {"num_cpus": config.placement.threads, "num_gpus": 1 if config.device.startswith("cuda") else 0}
        return RayHost(head, work="runnel.tune.job:run_job", needs=needs)
    limits = {name: str(config.placement.threads) for name in THREADS if name not in os.environ}
    host = LocalHost("runnel.tune.job:live", folder.log, early=EARLY, env=limits)
    stack.callback(host.end)
    return host


def schedule_of(params: State, changes: Sequence[State]) -> list[State]:
    """The settings of a member from version to version: those that it began with, and each change.

    >>> schedule_of({"lr": 0.2, "tau": 1}, [{"version": 8, "name": "lr", "value": 0.2, "was": 0.1}])
    [{'version': 0, 'settings': {'lr': 0.1, 'tau': 1}}, {'version': 8, 'settings': {'lr': 0.2}}]
    """
    found: dict[int, State] = {0: params | {c["name"]: c["was"] for c in changes if "was" in c}}
    for change in changes:
        found.setdefault(change["version"], {})[change["name"]] = change["value"]
    return [{"version": version, "settings": settings} for version, settings in found.items()]


class StudySession:
    """Runs a study until its end or an interruption."""

    def __init__(self, setup: Setup, folder: StudyFolder, *, live: bool) -> None:
        self._setup, self._folder = setup, folder
        self._book = Book(folder, setup)
        total = setup.options.members if setup.options.scheduler == "pbt" else setup.options.trials
        self._view = View(f"{Path(setup.recipe.name).stem} on {setup.subject}", total, live=live)
        self._interrupted = threading.Event()

    def run(self) -> Study:
        self._book.write("running")
        status = "failed"
        try:
            with ExitStack() as stack:
                stack.callback(self._view.close)
                host = _make_host(self._setup, self._folder, stack)
                workers, show = self._setup.options.workers, partial(self._view.show, self._book)
                pool = JobPool(host, workers=workers, interrupted=self._interrupted, show=show)
                stack.callback(pool.close)
                stack.enter_context(catch_signals(self._interrupted))
                status = self._search(pool)
        except KeyboardInterrupt:
            status = "interrupted"
        finally:
            word = make_end(status)["status"]
            self._book.write(word)
        best = read_json(self._folder.best) if self._folder.best.is_file() else None
        return Study(self._folder.path, word, best)

    def _search(self, pool: JobPool) -> str:
        kind = TrialPopulation if self._setup.options.scheduler == "pbt" else TrialSearch
        found: TrialPopulation | TrialSearch = kind(self._setup, self._folder, pool, self._book, self._view)
        status = found.run()
        if status == "interrupted":
            return status
        winner = self._book.best()
        if winner is None:
            raise RunnelError(f"no trial came to its end; see {self._folder.study}")
        changes = found.schedule(winner["number"]) if isinstance(found, TrialPopulation) else None
        if (self._book.data["test"] or {}).get("number") != winner["number"]:
            self._book.data["test"] = None  # the test of another winner
        self._write_best(winner, changes)
        if self._setup.options.test_seeds:
            status = self._test(pool, winner, changes or [])
            self._write_best(winner, changes)
        return status

    def _write_best(self, winner: Trial, changes: list[State] | None) -> None:
        """Write best.json. A population finds a schedule, which no single command trains: its run can be resumed or loaded."""
        setup, seed = self._setup, self._setup.seeds[0 if changes is None else winner["number"]]
        # A seed that the study neither tunes nor tests on: a report then counts the run of this command as one more seed.
        run = {"path": str(self._folder.path / "x"), "seed": setup.options.test_seeds + 1, "tags": []}
        config = trial_config(setup.recipe, setup.order([], log=self._folder.log)["config"], run, winner["params"])
        best = {k: winner[k] for k in ("number", "value", "params", "run", "runs")}
        best |= {
            "metric": setup.options.metric,
            "seeds": setup.seeds if changes is None else [seed],
            "test": self._book.data["test"],
        }
        command = {"command": train_command(setup.recipe, config)}
        best |= command if changes is None else {"schedule": schedule_of(winner["params"], changes)}
        write_json(self._folder.best, best)

    # ------------------------------------------------------------------------------------------------------------- test
    def _test(self, pool: JobPool, winner: Trial, changes: list[State]) -> str:
        """Train the winner on fresh seeds, which had no part in its selection; `changes` of its settings are made at the same
        versions. Seeds that were tested are not run again."""
        number, first = winner["number"], schedule_of(winner["params"], changes)[0]["settings"]
        known = self._book.data["test"] or {}
        values = dict(zip(known["seeds"], known["values"], strict=True)) if known.get("number") == number else {}
        due = [seed for seed in range(1, self._setup.options.test_seeds + 1) if seed not in values]

        def begin(seed: int) -> None:
            run = {"path": str(self._test_path(number, seed)), "seed": seed, "tags": ["test"], "changes": changes}
            run |= {"segments": [{"until": 1.0, "settings": first}]}
            pool.start(seed, {**self._setup.order([run], log=self._folder.log), "population": False})

        def handle(seed: int, message: Message) -> None:
            self._take_test(pool, seed, message, values)
            if values:
                self._book.data["test"] = self._tested(number, values)
                self._book.write()

        return pool.work(partial(next, iter(due), None), begin, handle)

    def _test_path(self, number: int, seed: int) -> Path:
        return self._folder.test / f"{number:04}-seed-{seed}"

    def _take_test(self, pool: JobPool, seed: int, message: Message, values: dict[int, float]) -> None:
        if message["kind"] == "point":
            pool.answer(seed, go=True)
        elif message["kind"] == "failed":
            raise RunnelError(f"the winner failed on test seed {seed}: {message['error']}")
        elif message["status"] == "finished":
            (values[seed],) = message["values"]
            self._view.note(f"test seed {seed}: {values[seed]:.4g}")

    def _tested(self, number: int, values: Mapping[int, float]) -> State:
        seeds = sorted(values)
        found = over_seeds([values[seed] for seed in seeds])
        runs = [self._folder.relative(self._test_path(number, seed)) for seed in seeds]
        numbers = {"mean": found.value, "low": found.low, "high": found.high}
        return {"number": number, "seeds": seeds, "values": [values[seed] for seed in seeds], **numbers, "runs": runs}
