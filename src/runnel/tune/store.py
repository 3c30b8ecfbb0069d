"""The Optuna parts of a study: sampler, pruner, and the journal that stores every trial.

One process writes the journal (the study's folder is held), so what a killed one left, a lock or half a line, is known to be
dead, and is deleted.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from runnel.core.errors import ConfigError
from runnel.core.rng import make_seed
from runnel.tune.settings import Setup
from runnel.tune.space import Param, Value

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

MIN_IMPORTANCE = 10
"""Number of completed trials below which importance is not computed: it would be noise."""
FIRST_RUNG = 9
"""Hyperband looks first at a ninth of the budget: earlier, returns say little of what a run will learn."""
NAME = "study"


def import_optuna() -> ModuleType:
    """Import Optuna; a `ConfigError` with the fix if it is not installed."""
    try:
        import optuna
    except ImportError as error:
        fix = "a search needs Optuna: pip install 'runnel[tune]'; or use --scheduler pbt"
        raise ConfigError("sampler", "tpe", fix) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def open_study(journal: Path, setup: Setup) -> Study:
    """The Optuna study in `journal`; it is made if the file does not exist."""
    optuna = import_optuna()
    mend(journal)
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    try:
        study: Study = optuna.create_study(
            study_name=NAME,
            storage=optuna.storages.JournalStorage(backend),
            direction=setup.options.direction,
            pruner=_pruner(optuna, setup),
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError("out", str(journal), f"this file is damaged ({error}); restore it, or start a new study") from error
    if setup.options.sampler == "grid":
        for point in grid_of(setup):
            study.enqueue_trial(point, skip_if_exists=True)
    return study


def mend(journal: Path) -> None:
    """Delete what a process that was killed while it wrote has left: its lock, and half a line at the end."""
    for lock in journal.parent.glob(f"{journal.name}.lock*"):
        lock.unlink()
    if journal.is_file():
        data = journal.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with journal.open("r+b") as file:
                file.truncate(len(whole))


def grid_of(setup: Setup) -> list[dict[str, Value]]:
    """The points of the grid, as Optuna's values; at most `trials` of them."""
    axes = [[(p.name, p.label_of(v)) for v in p.grid(setup.options.grid_points)] for p in setup.space.values()]
    return [dict(point) for point in itertools.islice(itertools.product(*axes), setup.options.trials)]


def sampler(setup: Setup, number: int) -> BaseSampler:
    """The sampler of trial `number`. Each trial has a seed of its own, so a resumed study proposes the same trials."""
    samplers = import_optuna().samplers
    seed = make_seed(setup.options.search_seed, "tune", number) % (1 << 32)
    kind = samplers.TPESampler if setup.options.sampler == "tpe" else samplers.RandomSampler
    made: BaseSampler = kind(seed=seed)
    return made


def _pruner(optuna: ModuleType, setup: Setup) -> BasePruner:
    total, pruners = setup.total, optuna.pruners
    pruner: BasePruner = pruners.NopPruner()
    if setup.options.pruner == "median":
        pruner = pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=total // 5)
    if setup.options.pruner == "hyperband":
        least, most = max(1, total // FIRST_RUNG), total * setup.options.seeds_per_trial
        pruner = pruners.HyperbandPruner(min_resource=least, max_resource=most, reduction_factor=3)
    return pruner


def suggest(trial: Trial, space: dict[str, Param]) -> None:
    """Let Optuna choose every parameter that the trial does not have yet."""
    for p in space.values():
        if p.name in trial.params:
            continue
        if p.kind == "choice":
            trial.suggest_categorical(p.name, p.labels())
        elif p.kind == "int":
            trial.suggest_int(p.name, int(p.low), int(p.high), log=p.log)
        else:
            trial.suggest_float(p.name, p.low, p.high, log=p.log)


def importance(study: Study, space: dict[str, Param]) -> dict[str, float] | None:
    """The share of each parameter in the variance of the values (fANOVA); None while there are too few trials."""
    optuna = import_optuna()
    done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(done) < MIN_IMPORTANCE or len({t.value for t in done}) < 2:
        return None
    try:
        found = optuna.importance.get_param_importances(study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0))
    except ImportError:  # fANOVA needs scikit-learn
        found = optuna.importance.get_param_importances(study, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
    return {name: float(found.get(name, 0.0)) for name in space}
