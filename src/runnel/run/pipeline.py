"""Pipelines: stages that follow each other, each a run of its own that starts from what the ones before left.

A stage hands over by name: `{sft}/model` in a later stage's settings is the model folder of the stage `sft`, `{self}` the
stage's own folder. Finished stages are skipped, an unfinished one is resumed, so a pipeline is started again by the same
command.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from runnel.core.config import differences, flat, to_data
from runnel.core.errors import ConfigError
from runnel.core.state import State
from runnel.graphs.run_config import BUDGETS, RunConfig
from runnel.llm.learning.learner import TokenLearnerConfig
from runnel.run import api, registry
from runnel.run.checkpoint import Checkpoints
from runnel.run.names import PIPELINES
from runnel.run.trust import runs_the_same
from runnel.run.warm import MODEL
from runnel.track.folder import RunFolder
from runnel.track.history import load_history
from runnel.track.status import has_ended


@dataclass(frozen=True)
class Stage:
    """One run of a pipeline: a name that later stages refer to, a recipe, and settings of its config."""

    name: str
    recipe: str
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineConfig:
    """The settings of every pipeline."""

    out: str = "runs/pipeline"
    """Folder of the pipeline; each stage has its own in it. Start again with the same one to go on."""
    seed: int = 1
    """Seed of every stage."""
    device: str = "cpu"
    """Where networks live: cpu, cuda, cuda:1."""

    def check(self) -> None:
        """Raise a `ConfigError` for what cannot work, before anything starts; the stages check their own settings."""
        if not self.out:
            raise ConfigError("out", self.out, "give the pipeline a folder")


def learner_settings(
    config: TokenLearnerConfig, *, rollouts: bool = False, reference: bool = False, critic: bool = False
) -> State:
    """Settings of a learner for a stage with or without rollouts, a reference policy and a critic. Settings that the stage
    would not use are left out, because it would refuse them."""
    found: State = to_data(config)
    without = ["sft_lr"] + ([] if rollouts else ["temperature", "max_mismatch"]) + ([] if critic else ["critic_lr"])
    if not reference:
        without += ["reference", "reference_every", "reference_decay"]
        found["offload"] = [part for part in found["offload"] if part != "reference"]
    return {name: value for name, value in found.items() if name not in without}


@dataclass(frozen=True)
class Pipeline:
    """A loaded pipeline: a module with `Config` (over `PipelineConfig`) and `stages(config)`."""

    name: str
    module: ModuleType
    Config: type[PipelineConfig]
    stages: Callable[[Any], Sequence[Stage]]


def load_pipeline(name: str) -> Pipeline:
    """The pipeline called `name`, or the one in the file `name`."""
    parts = ("Config", "stages")
    module = registry.find_module(name, PIPELINES, field="pipeline", parts=parts, page="docs/guides/pipelines.md")
    return Pipeline(name, module, module.Config, module.stages)


def run_pipeline(stages: Sequence[Stage], *, out: str | Path, progress: bool | None = None) -> list[api.Run]:
    """Run `stages` one after another under `out`; returns their runs. Ends early if one of them is interrupted. The settings
    of all of them are checked before the first one trains."""
    _check(stages)
    folders = {s.name: Path(out).resolve() / f"{number:02}-{s.name}" for number, s in enumerate(stages, start=1)}
    for stage in stages:
        _check_stage(stage, stages, folders)
    runs: list[api.Run] = []
    for stage in stages:
        runs.append(_stage(stage, folders, progress=progress))
        if not is_done(runs[-1]):
            break
    return runs


def is_done(run: api.Run) -> bool:
    """Whether the next stage may start from this run."""
    return run.status in ("finished", "solved", "stopped") and not run.interrupted


def _check(stages: Sequence[Stage]) -> None:
    """Refuse a name that two stages have, and one that refers to no earlier stage."""
    known: set[str] = {"self"}
    for stage in stages:
        if stage.name in known or not re.fullmatch(r"[\w.-]+", stage.name):
            raise ConfigError("stages", stage.name, "each stage needs a name of its own, of letters, digits, - and _")
        for value in _texts(stage.settings):
            for name in _names(value):
                if name not in known:
                    raise ConfigError(f"{stage.name}.settings", value, f"no earlier stage is called {name!r}")
        known.add(stage.name)


def _texts(settings: Mapping[str, object]) -> list[str]:
    return [value for value in flat(settings).values() if isinstance(value, str)]


def _filled(settings: Mapping[str, object], folders: Mapping[str, str]) -> dict[str, object]:
    """Settings with the folders of stages in place of their names."""

    def fill(value: object) -> object:
        if isinstance(value, Mapping):
            return _filled(value, folders)
        return re.sub(r"\{([\w.-]+)\}", lambda m: folders[m[1]], value) if isinstance(value, str) else value

    return {key: fill(value) for key, value in settings.items()}


def _configured(stage: Stage, folders: Mapping[str, Path]) -> RunConfig:
    """The config of a stage, in its folder."""
    folder = folders[stage.name]
    names = {name: str(path) for name, path in folders.items()} | {"self": str(folder)}
    settings = {**_filled(stage.settings, names), "out": str(folder.parent), "name": folder.name}
    return registry.configure(registry.load_recipe(stage.recipe), settings)


def _check_stage(stage: Stage, stages: Sequence[Stage], folders: Mapping[str, Path]) -> None:
    """Raise a `ConfigError` that names the stage, for settings that cannot work; what depends on stages that have not run is
    not checked. A stage that has run keeps its settings."""
    try:
        config = _configured(stage, folders)
        config.check()
        if _begun(folders[stage.name]):
            _check_same(folders[stage.name], to_data(config))
        elif (stand_in := _stand_in(stage, stages, folders)) is not None:
            registry.build(stage.recipe, _configured(stand_in, folders))
    except ConfigError as error:
        raise ConfigError(f"{stage.name}.{error.field}", error.value, error.fix) from error


def _stand_in(stage: Stage, stages: Sequence[Stage], folders: Mapping[str, Path]) -> Stage | None:
    """The stage in a form that can be built now; None if it needs other results of stages that have not run.

    In place of the model that such a stage will leave, it has the one that this stage starts from: the tokenizer and the sizes
    are the same. A reward model that does not exist yet is left out."""
    settings = dict(stage.settings)
    for key, value in stage.settings.items():
        missing = [n for text in _texts({key: value}) for n in _names(text) if n != "self" and _done(folders[n]) is None]
        if not missing:
            continue
        if key == "model" and value == f"{{{missing[0]}}}/{MODEL}":
            source = _stand_in(next(s for s in stages if s.name == missing[0]), stages, folders)
            if source is None:
                return None
            del settings["model"]
            settings |= {name: source.settings[name] for name in ("model", "lm") if name in source.settings}
        elif key == "reward_model":
            del settings["reward_model"]
        else:
            return None
    return replace(stage, settings=settings)


def _names(text: str) -> list[str]:
    """Stages that a setting refers to."""
    return re.findall(r"\{([\w.-]+)\}", text)


def _stage(stage: Stage, folders: Mapping[str, Path], *, progress: bool | None) -> api.Run:
    """The run of a stage. A finished stage is not run again; an unfinished one is resumed."""
    folder, config = folders[stage.name], _configured(stage, folders)
    if _begun(folder):
        if (done := _done(folder)) is not None:
            return done
        # code that this stage names too was named by the user, whose pipeline it is
        trust = runs_the_same(RunFolder(folder), registry.load_recipe(stage.recipe).name, to_data(config))
        return _resume(folder, progress=progress, trust=trust)
    if folder.is_dir():
        with RunFolder(folder).held():  # refuses a folder in which another process trains
            shutil.rmtree(folder)  # it ended before its first checkpoint, so there is nothing to resume
    return api.train_config(stage.recipe, config, progress=progress)


def _begun(folder: Path) -> bool:
    """Whether a stage is done, or has a checkpoint after at least one update."""
    if not folder.is_dir():
        return False
    saved = Checkpoints(RunFolder(folder).checkpoints).finished()
    return _done(folder) is not None or any(int(path.name[:9]) > 0 for path in saved)


def _done(folder: Path) -> api.Run | None:
    """The run of a finished stage, from its files; None if it has not finished, or has collapsed."""
    if not RunFolder(folder).metrics.is_file():
        return None
    history = load_history(folder)
    status = str(history.end.get("status", ""))
    if not has_ended(history.end) or status == "collapsed":
        return None
    last, evals = history.updates[-1], history.evals
    return api.Run(folder, status, last["version"], last["steps"], last["tokens"], evals[-1] if evals else None, 0.0)


def _resume(folder: Path, *, progress: bool | None, trust: bool) -> api.Run:
    """Resume a stage. One that was killed after its last update has no budget left: then only its model is written."""
    try:
        return api.resume(folder, progress=progress, trust=trust)
    except ConfigError as error:
        if error.field not in BUDGETS:
            raise
    api.export(folder, folder / MODEL, trust=trust)
    version = Checkpoints(RunFolder(folder).checkpoints).newest_params().version
    return api.Run(folder, "finished", version, 0, 0, None, 0.0)


def _check_same(folder: Path, config: Mapping[str, object]) -> None:
    """Refuse other settings for a stage that has run: later stages would start from something else than the pipeline says."""
    changed = differences(RunFolder(folder).read_config(), config)
    if changed:
        field_, (old, new) = next(iter(changed.items()))
        raise ConfigError(field_, new, f"{folder} was made with {old!r}; keep it, or give the pipeline another out")
