"""`--config`: fields of a recipe from a file, which is a user's TOML file or the config.json of an existing run."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject, Settings
from runnel.graphs.run_config import BUDGETS
from runnel.run.trust import check_code
from runnel.track.folder import RunFolder

OF_ONE_RUN = ("out", "name", "tags")
"""Fields of a config.json that name its run. They do not say how the run was trained."""


def read_overlay(args: list[str], recipe: str, *, without: Collection[str] = ()) -> JsonObject:
    """Read the file of `--config`; an empty dict without the flag.

    From the config.json of a run, the fields `without` are left out too. Code that it names runs only if the user made that
    run, or gives --trust (`run/trust.py`).
    """
    for i, arg in enumerate(args):
        name, _, value = arg.partition("=")
        if name == "--config":
            path = _found(Path(value or (args[i + 1] if i + 1 < len(args) else "")))
            data = _read(path)
            if path.suffix != ".json":
                return data
            _check_recipe(path, recipe)
            given = ("recipe", *(flag.partition("=")[0].lstrip("-") for flag in args if flag.startswith("--")))
            check_code(path.parent, recipe, data, trust="--trust" in args, given=given, training=True)
            return {field: value for field, value in data.items() if field not in (*OF_ONE_RUN, *without)}
    return {}


def flags_given(args: list[str]) -> set[str]:
    """Names of the settings among flags."""
    return {arg.partition("=")[0].lstrip("-").replace("-", "_") for arg in args if arg.startswith("--")}


def budgets_named(args: list[str], overlay: Settings) -> set[str]:
    """The budgets (`total_steps`, ...) that the user gave: on the command line, else in the file."""
    return {*BUDGETS} & flags_given(args) or {name for name in BUDGETS if overlay.get(name) is not None}


def _found(path: Path) -> Path:
    if path.is_dir() and RunFolder(path).config.is_file():
        path = RunFolder(path).config
    if not path.is_file():
        raise ConfigError("config", str(path), "there is no such file")
    return path


def _read(path: Path) -> JsonObject:
    is_json = path.suffix == ".json"
    try:
        text = path.read_text("utf-8")
        data = json.loads(text) if is_json else tomllib.loads(text)
    except ValueError as error:  # errors of TOML, JSON and UTF-8 are all ValueErrors
        raise ConfigError("config", str(path), f"is not {'JSON' if is_json else 'TOML'}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError("config", str(path), "must hold a JSON object, as a run's config.json does")
    return data


def _check_recipe(path: Path, recipe: str) -> None:
    """Refuse the config of a run of another recipe, which has other fields."""
    found = RunFolder(path.parent).read_run_info().get("recipe", recipe) if path.name == "config.json" else recipe
    if found != recipe:
        raise ConfigError("config", str(path), f"is of a run of {found}; use runnel train {found}")
