"""Public names that a package loads when they are first used (PEP 562): importing the package itself imports nothing heavy.

A package lists its names once, as imports under `if TYPE_CHECKING:`, where type checkers and editors read them. `lazy_names`
reads the same lines.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path


def lazy_names(package: str, file: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """`__all__`, `__getattr__` and `__dir__` of the package `package`, which is written in `file`.

    Subpackages on the list are loaded by name too. The error for an unknown name says which of them has that name.
    """
    homes = _homes(file)
    subpackages = [name for name, home in homes.items() if home == package]

    def load(name: str) -> object:
        if name in subpackages:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            # Python, doctest and inspect ask for many private names: those get the plain error at once.
            place = "" if name.startswith("_") else _place(name, package, subpackages)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{place}", name=name, obj=sys.modules[package])
        found: object = getattr(importlib.import_module(homes[name]), name)
        # Python calls __getattr__ only for names that the module does not have, so this runs once a name.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return sorted({*homes} - {*subpackages}), load, names


def _place(name: str, package: str, subpackages: Sequence[str]) -> str:
    """What the error for an unknown name adds: the subpackage that has it, if one does."""
    for subpackage in subpackages:
        if name in importlib.import_module(f"{package}.{subpackage}").__all__:
            return f"; use {package}.{subpackage}.{name}"
    return ""


def _homes(file: str) -> dict[str, str]:
    """Each name that `file` imports under `if TYPE_CHECKING:`, and the module that it is in."""
    homes: dict[str, str] = {}
    for node in ast.parse(Path(file).read_text("utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for line in node.body:
                assert isinstance(line, ast.ImportFrom)
                assert line.module is not None
                homes |= {alias.name: line.module for alias in line.names}
    return homes
