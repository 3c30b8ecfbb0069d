"""Pipelines: stages that follow each other, each a run of its own that starts from what the ones before left.

A stage hands over by name: `{sft}/model` in a later stage's settings is the model folder of the stage `sft`, `{self}` the
stage's own folder. Finished stages are skipped, an unfinished one is resumed, so a pipeline is started again by the same
command.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from runnel.core.config import differences, to_data
from runnel.core.errors import ConfigError
from runnel.core.resolve import load_module
from runnel.run import api, registry
from runnel.run.checkpoint import Checkpoints
from runnel.run.experiment import BUDGETS
from runnel.track.folder import RunFolder

PIPELINES = {
    "iterated_dpo": "runnel.recipes.iterated_dpo",
    "rlhf": "runnel.recipes.rlhf",
}
DONE = ("finished", "stopped")


@dataclass(frozen=True)
class Stage:
    """One run of a pipeline: a name that later stages refer to, a recipe, and settings of its config."""

    name: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PipelineConfig:
    """What every pipeline can be told."""

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


@dataclass(frozen=True)
class Pipeline:
    """A pipeline that has been found: a module with `Config` (over `PipelineConfig`) and `stages(config)`."""

    name: str
    module: ModuleType
    Config: type[PipelineConfig]
    stages: Callable[[Any], Sequence[Stage]]

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return (self.module.__doc__ or "").strip().partition("\n")[0]


def load_pipeline(name: str) -> Pipeline:
    """The pipeline called `name`, or the one in the file `name`."""
    if name.endswith(".py"):
        module = load_module(name, "pipeline")
    elif name in PIPELINES:
        module = importlib.import_module(PIPELINES[name])
    else:
        raise ConfigError("pipeline", name, f"unknown; use one of {', '.join(PIPELINES)}, or the path of your own .py file")
    for part in ("Config", "stages"):
        if not hasattr(module, part):
            raise ConfigError("pipeline", name, f"the file defines no {part}; see docs/pipelines.md")
    return Pipeline(name, module, module.Config, module.stages)


def run_pipeline(stages: Sequence[Stage], *, out: str | Path, live: bool = False) -> list[api.Run]:
    """Run `stages` one after another under `out`; returns their runs. Ends early if one of them is interrupted."""
    _check(stages)
    runs: list[api.Run] = []
    folders: dict[str, str] = {}
    for number, stage in enumerate(stages, start=1):
        folder = Path(out).resolve() / f"{number:02}-{stage.name}"
        settings = _filled(stage.settings, {**folders, "self": str(folder)})
        runs.append(_stage(stage, folder, settings, live=live))
        if runs[-1].status not in DONE:
            break
        folders[stage.name] = str(folder)
    return runs


def _check(stages: Sequence[Stage]) -> None:
    """Names are unique, and refer to stages that come before."""
    known: set[str] = {"self"}
    for stage in stages:
        if stage.name in known or not re.fullmatch(r"[\w.-]+", stage.name):
            raise ConfigError("stages", stage.name, "each stage needs a name of its own, of letters, digits, - and _")
        for value in _texts(stage.settings):
            for name in re.findall(r"\{([\w.-]+)\}", value):
                if name not in known:
                    raise ConfigError(f"{stage.name}.settings", value, f"no earlier stage is called {name!r}")
        known.add(stage.name)


def _texts(settings: Mapping[str, Any]) -> list[str]:
    nested = [_texts(v) for v in settings.values() if isinstance(v, Mapping)]
    return [v for v in settings.values() if isinstance(v, str)] + [text for some in nested for text in some]


def _filled(settings: Mapping[str, Any], folders: Mapping[str, str]) -> dict[str, Any]:
    """Settings with the folders of stages in place of their names."""

    def fill(value: Any) -> Any:
        if isinstance(value, Mapping):
            return _filled(value, folders)
        return re.sub(r"\{([\w.-]+)\}", lambda m: folders[m[1]], value) if isinstance(value, str) else value

    return {key: fill(value) for key, value in settings.items()}


def _stage(stage: Stage, folder: Path, settings: Mapping[str, Any], *, live: bool) -> api.Run:
    """The run of a stage: as it was left if it is done, resumed if it was begun, else from its start."""
    settings = {**settings, "out": str(folder.parent), "name": folder.name}
    recipe = registry.load_recipe(stage.recipe)
    config = registry.configure(recipe, settings)
    if folder.is_dir():
        done = _done(folder)
        if done is not None or Checkpoints(RunFolder(folder).checkpoints).finished():
            _check_same(stage.name, folder, to_data(config))
            return done or _resume(folder, live=live)
        shutil.rmtree(folder)  # it ended before its first checkpoint: there is nothing to go on from
    return api.train_config(recipe.name, config, live=live)


def _done(folder: Path) -> api.Run | None:
    """The run of a finished stage, from its files."""
    rows = RunFolder(folder).read_rows()[0]
    ends = [r for r in rows if r["kind"] == "end" and r["status"] in DONE]
    if not ends:
        return None
    evals = [r for r in rows if r["kind"] == "eval"]
    last = [r for r in rows if r["kind"] == "update"][-1]
    return api.Run(
        folder, ends[-1]["status"], last["version"], last["steps"], last["tokens"], evals[-1] if evals else None, 0.0
    )


def _resume(folder: Path, *, live: bool) -> api.Run:
    """Go on with a stage. One that was killed after its last update has spent its budget: only its model is written again."""
    try:
        return api.resume(folder, live=live)
    except ConfigError as error:
        if error.field not in BUDGETS:
            raise
    api.export(folder, folder / api.MODEL)
    version = Checkpoints(RunFolder(folder).checkpoints).newest_params().version
    return api.Run(folder, "finished", version, 0, 0, None, 0.0)


def _check_same(name: str, folder: Path, config: Mapping[str, Any]) -> None:
    """A stage that was begun keeps its settings; else later stages would build on something else than they say."""
    changed = differences(RunFolder(folder).read_config(), config)
    if changed:
        field_, (old, new) = next(iter(changed.items()))
        raise ConfigError(f"{name}.{field_}", new, f"{folder} was made with {old!r}; keep it, or give the pipeline another out")
