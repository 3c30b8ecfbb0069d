"""A search by trials. Optuna proposes settings, they are trained (on each seed once), and the value is reported to Optuna."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from runnel.core.errors import RunnelError
from runnel.core.framing import Message
from runnel.tune.folder import Book, StudyFolder, Trial, blank_trial
from runnel.tune.job_pool import JobPool
from runnel.tune.settings import Setup
from runnel.tune.show import View
from runnel.tune.space import Value
from runnel.tune.store import MIN_IMPORTANCE, import_optuna, importance, open_study, sampler, suggest

if TYPE_CHECKING:
    import optuna

MAX_FAILURES = 5
"""If so many trials have failed and none has succeeded, the study ends: then the recipe is broken, not the settings."""
STATES = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}


class TrialSearch:
    """Trials of one study, `workers` at a time."""

    def __init__(self, setup: Setup, folder: StudyFolder, pool: JobPool, book: Book, view: View) -> None:
        self._setup, self._folder, self._pool, self._book, self._view = setup, folder, pool, book, view
        self._optuna = import_optuna()
        self._study = open_study(folder.journal, setup)
        self._live: dict[int, optuna.Trial] = {}
        self._began: dict[int, float] = {}
        self._left = self._take_up()

    def run(self) -> str:
        """Run trials until there are enough, or until an interruption. Returns `finished` or `interrupted`."""
        self._write()
        status = self._pool.work(self._propose, self._start, self._handle)
        if status == "finished":
            self._book.data["importance"] = importance(self._study, self._setup.space)
            self._write()
        return status

    # --------------------------------------------------------------------------------------------------------- starting
    def _take_up(self) -> list[int]:
        """Numbers of the trials that were running when the study was stopped. Those that were to be pruned are ended here."""
        left = []
        for frozen in self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)):
            trial = self._optuna.trial.Trial(self._study, frozen._trial_id)
            if frozen.user_attrs.get("pruned") or (frozen.intermediate_values and trial.should_prune()):
                self._study.tell(frozen.number, state=self._optuna.trial.TrialState.PRUNED)
            else:
                left.append(frozen.number)
        return left

    def _start(self, trial: optuna.Trial) -> None:
        suggest(trial, self._setup.space)
        self._live[trial.number], self._began[trial.number] = trial, time.monotonic()
        after = max(self._frozen(trial.number).intermediate_values, default=0)
        runs = [self._run(path, seed, self._params(trial.params)) for path, seed in self._paths(trial.number)]
        self._pool.start(trial.number, self._setup.order(runs, log=self._folder.log, after=after))
        self._write()

    def _propose(self) -> optuna.Trial | None:
        """The next trial: an unfinished one, one of the grid, or a new one. None if there are enough."""
        trials = self._study.get_trials(deepcopy=False)
        if self._left:
            number = self._left.pop(0)
            self._study.sampler = sampler(self._setup, number)
            left: optuna.Trial = self._optuna.trial.Trial(self._study, trials[number]._trial_id)
            return left
        waiting = sum(t.state == self._optuna.trial.TrialState.WAITING for t in trials)
        begun = len(trials) - waiting
        if begun >= self._setup.options.trials or (self._setup.options.sampler == "grid" and not waiting):
            return None
        self._study.sampler = sampler(self._setup, begun)
        return self._study.ask()

    def _paths(self, number: int) -> list[tuple[Path, int]]:
        return [(self._folder.trials / f"{number:04}-seed-{seed}", seed) for seed in self._setup.seeds]

    def _run(self, path: Path, seed: int, params: dict[str, Value]) -> Message:
        segments = [{"until": 1.0, "settings": params}]
        return {"path": str(path), "seed": seed, "tags": ["tuning"], "segments": segments}

    def _params(self, found: dict[str, Value]) -> dict[str, Value]:
        """Optuna's values as those of the recipe's fields."""
        return {name: self._setup.space[name].value_of(value) for name, value in found.items()}

    # --------------------------------------------------------------------------------------------------------- handling
    def _handle(self, number: int, message: Message) -> None:
        if message["kind"] == "point":
            self._pool.answer(number, go=not self._prunes(number, message["step"], message["value"]))
        else:
            self._end(number, message)
        self._write()

    def _prunes(self, number: int, step: int, value: float) -> bool:
        trial = self._live[number]
        trial.report(value, step)
        if not trial.should_prune():
            return False
        trial.set_user_attr("pruned", True)  # stored before the verdict is sent: a killed study still knows it
        return True

    def _end(self, number: int, message: Message) -> None:
        states, trial = self._optuna.trial.TrialState, self._live.pop(number)
        trial.set_user_attr("seconds", self._seconds(number))
        self._began.pop(number)
        if message["kind"] == "failed":
            trial.set_user_attr("error", message["error"])
            self._study.tell(number, state=states.PRUNED if message.get("refused") else states.FAIL)
            self._give_up_if_hopeless(at_once=bool(message.get("fatal")))
        elif message["status"] == "finished":
            self._study.tell(number, sum(message["values"]) / len(message["values"]))
            done = sum(t["state"] == "complete" for t in self._book.trials) + 1
            if done >= MIN_IMPORTANCE and done % 5 == 0:  # it takes a moment, so it is not computed after each trial
                self._book.data["importance"] = importance(self._study, self._setup.space)
        elif message["status"] == "pruned":
            self._study.tell(number, state=states.PRUNED)

    def _give_up_if_hopeless(self, *, at_once: bool) -> None:
        trials = [t for t in self._study.get_trials(deepcopy=False) if t.state.is_finished()]
        failed = [t for t in trials if "error" in t.user_attrs]
        if len(failed) == len(trials) and (at_once or len(failed) >= min(MAX_FAILURES, self._setup.options.trials)):
            self._write()
            raise RunnelError(f"{len(failed)} trials failed and none worked; the first: {failed[0].user_attrs.get('error')}")

    # ---------------------------------------------------------------------------------------------------------- writing
    def _frozen(self, number: int) -> optuna.trial.FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _seconds(self, number: int) -> float:
        before = float(self._frozen(number).user_attrs.get("seconds", 0.0))
        return before + time.monotonic() - self._began[number] if number in self._began else before

    def _write(self) -> None:
        self._book.put([self._told(t) for t in self._study.get_trials(deepcopy=False) if t.state.name in STATES])
        self._book.write()
        self._view.show(self._book)

    def _told(self, frozen: optuna.trial.FrozenTrial) -> Trial:
        runs = [self._folder.relative(path) for path, _ in self._paths(frozen.number)]
        trial = blank_trial(frozen.number, self._params(frozen.params), runs)
        steps = [[step, value] for step, value in sorted(frozen.intermediate_values.items())]
        value = frozen.value if frozen.state.name == "COMPLETE" else steps[-1][1] if steps else None
        value = None if frozen.state.name == "FAIL" else value
        state, error = STATES[frozen.state.name], frozen.user_attrs.get("error")
        return trial | {"state": state, "value": value, "steps": steps, "seconds": self._seconds(frozen.number), "error": error}
