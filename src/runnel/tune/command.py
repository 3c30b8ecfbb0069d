"""A config as the command line that makes it: `runnel train RECIPE --field value ...`."""

from __future__ import annotations

import dataclasses
import json
import shlex
import types
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runnel.core.config import to_data
from runnel.graphs.run_config import BUDGETS, RunConfig
from runnel.run.registry import Recipe, begin

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SKIPPED = ("out", "name", "tags", "track", "sinks")


def train_command(recipe: Recipe, config: RunConfig) -> str:
    """The command that trains `config`; only what differs from what the recipe begins with there is said."""
    words = ["runnel", "train", recipe.name]
    begins = begin(recipe, {name: getattr(config, name) for name in ("env", "zoo") if hasattr(config, name)})
    for flag in flags(begins, config):
        words += flag
    return shlex.join(words)


def flags(default: object, config: DataclassInstance, path: str = "") -> Iterator[list[str]]:
    """A flag and its values for each field that differs, as `runnel train` reads them."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        old, new = getattr(default, field.name), getattr(config, field.name)
        if old == new or (not path and (field.name in SKIPPED or (field.name in BUDGETS and new is None))):
            continue
        name = f"{path}{field.name.replace('_', '-')}"
        if dataclasses.is_dataclass(new) and not isinstance(new, type) and type(old) is type(new):
            yield from flags(old, new, f"{name}.")
        elif hints[field.name] is bool:
            head, _, tail = name.rpartition(".")
            yield ["--" + (name if new else f"{head}.no-{tail}" if head else f"no-{tail}")]
        else:
            yield [f"--{name}", *_words(new)]


def _words(value: object) -> list[str]:
    if isinstance(value, dict):
        return [json.dumps(to_data(value))]
    if isinstance(value, list | tuple):
        return [word for one in value for word in _words(one)]
    assert not isinstance(value, types.FunctionType)
    return [str(value)]
