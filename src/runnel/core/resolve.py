"""User code by name: `package.module:name` or `path/to/file.py:name`. This, and never a pickle, crosses processes."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from runnel.core.errors import ConfigError


def load_module(target: str, field: str) -> ModuleType:
    """The module `target`: a dotted name, or the path of a `.py` file (loaded once per path)."""
    if not target.endswith(".py"):
        try:
            return importlib.import_module(target)
        except ModuleNotFoundError as error:
            raise ConfigError(field, target, f"cannot import it ({error}); give a module on the path or a .py file") from error
    path = Path(target).resolve()
    if not path.is_file():
        raise ConfigError(field, target, "there is no such file; give the path of an existing .py file")
    name = f"runnel_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def load_object(target: str, field: str) -> Any:
    """The object that `module:name` or `file.py:name` points at.

    >>> load_object("math:pi", "x") > 3
    True
    """
    module_name, _, name = target.rpartition(":")
    if not module_name:
        raise ConfigError(field, target, "write module:name or path/to/file.py:name")
    found: Any = load_module(module_name, field)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(field, target, f"{module_name} has no {part!r}")
        found = getattr(found, part)
    return found


def _walk(module: ModuleType, name: str) -> Any:
    """What `name` stands for in `module` now: not `obj` for a bound method, or where another took its name."""
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_reference(text: str) -> bool:
    """Whether `text` looks like `module:name` or `file.py:name` (Gymnasium's `module:EnvId-v0` does not)."""
    module_name, _, name = text.rpartition(":")
    return bool(module_name) and name.replace(".", "").replace("_", "").isalnum() and "-" not in name


def reference(obj: Any) -> str | None:
    """The name by which another process could load `obj`, or None (a lambda, a local class, a notebook's function)."""
    name = getattr(obj, "__qualname__", "")
    module = inspect.getmodule(obj)
    if module is None or not name or "<" in name or _walk(module, name) != obj:
        return None
    if module.__name__ == "__main__" or module.__name__.startswith("runnel_user_"):
        file = getattr(module, "__file__", None)
        return f"{Path(file).resolve()}:{name}" if file else None
    return f"{module.__name__}:{name}"
