"""A config as the command line that makes it: `runnel train RECIPE --field value ...`."""

from __future__ import annotations

import json
import shlex
import types
from collections.abc import Iterator

from runnel.core.config import hints_of, settings_of, to_data
from runnel.graphs.run_config import BUDGETS, RunConfig
from runnel.run.registry import Recipe, begin

SKIPPED = ("out", "name", "tags", "track", "sinks")


def train_command(recipe: Recipe, config: RunConfig) -> str:
    """The command that trains `config`; only what differs from what the recipe begins with there is said."""
    words = ["runnel", "train", recipe.name]
    begins = begin(recipe, {name: getattr(config, name) for name in ("env", "zoo") if hasattr(config, name)})
    for flag in flags(begins, config):
        words += flag
    return shlex.join(words)


def flags(default: object, config: object) -> Iterator[list[str]]:
    """A flag and its values for each field that differs, as `runnel train` reads them."""
    before = {setting.name: setting.value for setting in settings_of(default)}
    for name, owner, field, value in settings_of(config):
        if before.get(name) == value or name.partition(".")[0] in SKIPPED or (name in BUDGETS and value is None):
            continue
        group, dot, own = name.replace("_", "-").rpartition(".")
        if hints_of(owner)[field] is bool:
            yield [f"--{group}{dot}{'' if value else 'no-'}{own}"]
        else:
            yield [f"--{group}{dot}{own}", *_words(value)]


def _words(value: object) -> list[str]:
    if isinstance(value, dict):
        return [json.dumps(to_data(value))]
    if isinstance(value, list | tuple):
        return [word for one in value for word in _words(one)]
    assert not isinstance(value, types.FunctionType)
    return [str(value)]
