"""`--config`: fields of a recipe from a file, which is a user's TOML file or the config.json of an existing run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from runnel.cli.arguments import flag_names
from runnel.core.config import read_table
from runnel.core.errors import ConfigError
from runnel.core.state import JsonObject, Settings
from runnel.graphs.run_config import BUDGETS
from runnel.run.trust import check_code
from runnel.track.folder import RunFolder

OF_ONE_RUN = ("out", "name", "tags")
"""Fields of a config.json that name its run. They do not say how the run was trained."""

DIGESTS = {"data": "data_digest", "curriculum.states": "curriculum.states_digest"}
"""Folders that a run is made with, and where its config.json says what was in them. A new run may have others."""


def read_overlay(args: list[str], recipe: str, *, without: Collection[str] = ()) -> JsonObject:
    """Read the file of `--config`; an empty dict without the flag.

    From the config.json of a run, the fields `without` are left out too. Code that it names runs only if the user made that
    run, or gives --trust (`run/trust.py`).
    """
    for i, arg in enumerate(args):
        name, _, value = arg.partition("=")
        if name == "--config":
            path = Path(value or (args[i + 1] if i + 1 < len(args) else ""))
            if RunFolder(path).config.is_file():
                path = RunFolder(path).config
            data = read_table(path, "config")
            if path.suffix != ".json":
                return data
            _check_recipe(path, recipe)
            given = {"recipe", *flag_names(args)}
            check_code(path.parent, recipe, data, trust="--trust" in args, given=given, training=True)
            other = [digest for folder, digest in DIGESTS.items() if folder in given]
            return _without(data, (*OF_ONE_RUN, *without, *other))
    return {}


def _without(data: JsonObject, names: Collection[str], group: str = "") -> JsonObject:
    """`data` without the fields `names`, which are dotted for fields of a group."""
    kept = {field: value for field, value in data.items() if f"{group}{field}" not in names}
    return {k: _without(v, names, f"{group}{k}.") if isinstance(v, dict) else v for k, v in kept.items()}


def budgets_named(args: list[str], overlay: Settings) -> set[str]:
    """The budgets (`total_steps`, ...) that the user gave: on the command line, else in the file."""
    return {*BUDGETS} & flag_names(args) or {name for name in BUDGETS if overlay.get(name) is not None}


def _check_recipe(path: Path, recipe: str) -> None:
    """Refuse the config of a run of another recipe, which has other fields."""
    found = RunFolder(path.parent).read_run_info().get("recipe", recipe) if path.name == "config.json" else recipe
    if found != recipe:
        raise ConfigError("config", str(path), f"is of a run of {found}; use runnel train {found}")
