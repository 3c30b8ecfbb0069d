"""Environments of PettingZoo by name: `pettingzoo:mpe2.simple_spread_v3`, `pettingzoo:classic.tictactoe_v3`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

from runnel.core.errors import ConfigError

PREFIX = "pettingzoo:"
FAMILIES = {
    "mpe2": "mpe2",
    "classic": "pettingzoo.classic",
    "butterfly": "pettingzoo.butterfly",
    "sisl": "pettingzoo.sisl",
    "atari": "pettingzoo.atari",
}
"""The package of each family. Nothing outside of them is imported, so a name is no code of its own."""
_SHAPE = "write pettingzoo:FAMILY.NAME, for example pettingzoo:mpe2.simple_spread_v3"
_FORMS = ("parallel_env", "env")


def pettingzoo_factory(target: str) -> Callable[..., Any]:
    """What makes the environment that `target` names: in its parallel form where it has one, else turn by turn."""
    family, dot, name = target.removeprefix(PREFIX).partition(".")
    if family == "mpe":
        raise ConfigError("env", target, f"these environments are in the package mpe2 now: {PREFIX}mpe2{dot}{name}")
    if family not in FAMILIES or not name:
        close = difflib.get_close_matches(family, FAMILIES, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}? " if close and family not in FAMILIES else ""
        raise ConfigError("env", target, f"{hint}{_SHAPE}; the families are {', '.join(FAMILIES)}")
    module = _module(target, family, name)
    for form in _FORMS:
        if form in vars(module):
            factory: Callable[..., Any] = vars(module)[form]
            return factory
    fix = f"{module.__name__} has neither parallel_env nor env, so it is no environment of PettingZoo"
    raise ConfigError("env", target, fix + _close(_package(target, family), name))


def _package(target: str, family: str) -> ModuleType:
    try:
        return importlib.import_module(FAMILIES[family])
    except ModuleNotFoundError as error:
        raise ConfigError("env", target, f'needs the package {error.name}: pip install "runnel[teams]"') from error


def _module(target: str, family: str, name: str) -> ModuleType:
    package = _package(target, family)
    if name not in _names(package):
        raise ConfigError("env", target, f"{package.__name__} has no environment {name!r}{_close(package, name)}")
    try:
        return importlib.import_module(f"{package.__name__}.{name}")
    except ImportError as error:
        extra = "runnel[teams]" if family == "mpe2" else f"pettingzoo[{family}]"
        raise ConfigError("env", target, f'cannot be imported ({error}); pip install "{extra}"') from error


def _names(package: ModuleType) -> list[str]:
    """The modules and packages directly inside of `package`."""
    return [found.name for found in pkgutil.iter_modules(package.__path__)]


def _close(package: ModuleType, name: str) -> str:
    """The names in `package` that come nearest to `name`; else all of them."""
    known = [found for found in _names(package) if re.fullmatch(r".+_v\d+", found)]
    same = [found for found in known if found.rpartition("_v")[0] == re.sub(r"_v\d+$", "", name)]
    close = same or difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else f"; it has {', '.join(known)}"
