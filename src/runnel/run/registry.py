"""Finds recipes by name, and builds their experiments.

A recipe is a module with `Config` (a frozen dataclass over `RunConfig`) and `build(config) -> Experiment`; its docstring
says what it trains. Ours are listed here; a user's own is the path of a file.
"""

from __future__ import annotations

import difflib
import importlib
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from runnel.core.config import default_at, flat, override
from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.resolve import called, load_module
from runnel.envs.curricula.config import CurriculumConfig
from runnel.graphs.experiment import Experiment
from runnel.graphs.run_config import RunConfig, one_budget
from runnel.llm.learning.learner import TokenLearnerConfig
from runnel.llm.tasks.config import DataConfig
from runnel.run.names import RECIPES
from runnel.run.zoo import without_unused, zoo_settings


@dataclass(frozen=True)
class Recipe:
    """A loaded recipe: its name (or file), its module, its config class."""

    name: str
    module: ModuleType
    Config: type[RunConfig]


def load_recipe(name: str | Path) -> Recipe:
    """The recipe called `name`, or the one in the file `name`."""
    name = str(name) if isinstance(name, Path) else name
    if not isinstance(name, str):
        shown = getattr(name, "__name__", type(name).__name__)
        fix = "give the name of a recipe ('ppo'), or the path of your own .py file, which has a Config and a build(config)"
        raise ConfigError("recipe", shown, fix)
    module = find_module(name, RECIPES, field="recipe", parts=("Config", "build"), page="docs/guides/add-an-algorithm.md")
    if not (isinstance(module.Config, type) and issubclass(module.Config, RunConfig) and is_dataclass(module.Config)):
        fix = "its Config must be a frozen dataclass that derives from rl.RunConfig (rl.EnvConfig, ...)"
        raise ConfigError("recipe", name, fix)
    return Recipe(str(Path(name).resolve()) if name.endswith(".py") else name, module, module.Config)


def find_module(name: str, known: Mapping[str, str], *, field: str, parts: Collection[str], page: str) -> ModuleType:
    """The module that `known` has under `name`, or the user's file `name`. It must define `parts`, which `page` explains."""
    if name.endswith(".py"):
        module = load_module(name, field)
    elif name in known:
        module = importlib.import_module(known[name])
    else:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        fix = f"unknown; use one of {', '.join(known)}, or the path of your own .py file{hint}"
        raise ConfigError(field, name, fix)
    for part in parts:
        if not hasattr(module, part):
            raise ConfigError(field, name, f"the file defines no {part}; see {page}")
    return module


_FILES = ("data", "pairs", "rated")
"""Settings that are always a file or a folder, and never a name of ours."""


def absolute_paths(config: RunConfig) -> RunConfig:
    """The config with full paths of user code (`file.py:name`), so that the run can be resumed and loaded from any folder."""
    changes: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        if isinstance(value, str) and (found := _absolute_code(value)) != value:
            changes[f.name] = found
        elif f.name == "tasks":
            changes[f.name] = tuple(_absolute_source(v) for v in value)
        elif isinstance(value, tuple) and all(isinstance(v, str) for v in value):
            changes[f.name] = tuple(_absolute_code(v) for v in value)
        elif (
            f.name in ("task", "model", *_FILES)
            and isinstance(value, str)
            and (f.name in _FILES or "/" in value or "." in value)
            and value
            and Path(value).exists()
        ):
            changes[f.name] = str(Path(value).resolve())
        elif isinstance(value, DataConfig | CurriculumConfig | TokenLearnerConfig):
            changes[f.name] = value.absolute()
    return replace(config, **changes)


def _absolute_code(value: str) -> str:
    """`file.py:name` with the full path; any other text unchanged."""
    kind = "tensor:" if value.startswith("tensor:") else ""
    path, _, name = value.removeprefix(kind).rpartition(":")
    return f"{kind}{Path(path).resolve()}:{name}" if path.endswith(".py") and not Path(path).is_absolute() else value


def _absolute_source(value: str) -> str:
    """`NAME=TASK` with the full path of the task's file or folder."""
    name, equals, task = value.partition("=")
    task = str(Path(task).resolve()) if ("/" in task or "." in task) and Path(task).exists() else _absolute_code(task)
    return f"{name}{equals}{task}"


def configure(recipe: Recipe, settings: Mapping[str, object]) -> RunConfig:
    """The recipe's config with `settings` applied. A budget in `settings` replaces the recipe's own."""
    config = override(begin(recipe, settings), settings)
    return one_budget(without_unused(recipe.name, config, given=names_given(settings)), settings)


def names_given(settings: Mapping[str, object]) -> set[str]:
    """Dotted names of the settings in `settings`, which may be nested and may be written with hyphens."""
    return {name.replace("-", "_") for name in flat(settings)}


def begin(recipe: Recipe, settings: Mapping[str, object]) -> RunConfig:
    """The config before `settings` are applied: the recipe's defaults, with what was measured on the environment that
    `settings` name (`run/zoo.py`)."""
    config = recipe.Config()
    if not settings.get("zoo", True):
        return config
    return override(config, zoo_settings(recipe.name, settings.get("env", getattr(config, "env", None))))


def build(recipe: str, config: RunConfig) -> Experiment:
    """The experiment of a recipe, checked."""
    found = load_recipe(recipe)
    if not isinstance(config, found.Config):
        theirs = type(config).__module__
        fix = f"is no config of the recipe {found.name!r}; give its own ({found.module.__name__}.Config)"
        raise ConfigError("config", f"{theirs}.{type(config).__qualname__}", fix)
    config.check()
    made, how = found.module.build, "build(config)"
    experiment: Experiment = called(made, absolute_paths(config), field="recipe", target=recipe, how=how)
    if not isinstance(experiment, Experiment):
        raise ConfigError("recipe", recipe, f"its build(config) gave a {type(experiment).__name__}; return an rl.Experiment")
    experiment.check()
    return experiment


def build_saved(recipe: str, config: RunConfig, given: Collection[str] = ()) -> Experiment:
    """The experiment of an existing run, to be evaluated or played.

    A saved setting that nothing reads today gets its default: an older version may have accepted it. A setting that is `given`
    now is refused. A policy that was trained on a GPU plays on the CPU where there is none, which is told."""
    if "device" not in given:
        config = _on_this_machine(config)
    while True:
        try:
            return build(recipe, config)
        except UnusedSettingError as error:
            found = f"{error.field}."
            if any(found.startswith(f"{name}.") or name.startswith(found) for name in given):
                raise
            config = override(config, {error.field: default_at(config, error.field)})


def _on_this_machine(config: RunConfig) -> RunConfig:
    """The config with a device that is here."""
    saved, here = config.device, torch.cuda.device_count()
    try:
        device = torch.device(saved)
    except RuntimeError:
        return config  # its check names what is wrong
    if device.type == "cpu" or (device.index or 0) < here:
        # a rank of a trainer has a GPU of its own, but who plays needs one alone
        return override(config, {"device": "cuda:0"}) if saved == "cuda" and config.placement.trainers > here else config
    text = f"the run was trained on {saved}, and torch sees {here} CUDA devices here: its policy is on the CPU"
    warnings.warn(text, stacklevel=2)
    return override(config, {"device": "cpu"})
