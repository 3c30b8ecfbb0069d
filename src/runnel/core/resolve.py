"""User code by name: `package.module:name` or `path/to/file.py:name`. Processes exchange such names, never pickles."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from runnel.core.errors import ConfigError, RunnelError
from runnel.core.user_code import called_wrongly, frames, place_of, told

_loading: list[str] = []
"""Files that are being loaded now."""


def refuse_while_loading(what: str) -> None:
    """Refuse to do `what` while a file is being loaded.

    A worker process loads the file in which a class is written; without this check it would start the same run again.
    """
    if _loading:
        line = next((f.lineno for f in reversed(traceback.extract_stack()) if f.filename == _loading[-1]), 1)
        fix = f"line {line} calls {what} while the file is loaded; put that below if __name__ == '__main__':"
        raise ConfigError("file", _loading[-1], fix)


def load_module(target: str, field: str) -> ModuleType:
    """The module `target`: a dotted name, or the path of a `.py` file (loaded once per path)."""
    if not target.endswith(".py"):
        with _told(target, field):
            return importlib.import_module(target)
    path = Path(target).resolve()
    if not path.is_file():
        raise ConfigError(field, target, "there is no such file; give the path of an existing .py file")
    main = sys.modules["__main__"]
    if (running := getattr(main, "__file__", None)) and Path(running).resolve() == path:
        return main  # the program itself: to load it again would be to run it again
    name = f"runnel_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # before it runs, as Python does: dataclasses look their module up there
        _loading.append(str(path))
        try:
            with _told(target, field):
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        finally:
            _loading.pop()
    return sys.modules[name]


@contextmanager
def _told(target: str, field: str) -> Iterator[None]:
    """Turn an exception from loading a module into one error that names the file and the line."""
    try:
        yield
    except (RunnelError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{target}.".startswith(f"{error.name}."):  # the module itself, or a package above it
            raise ConfigError(field, target, f"cannot import it ({error}); give a module on the path or a .py file") from error
        fix = f"it imports {error.name!r}, which is not there; install it, or correct the name{frames(error)}"
        raise ConfigError(field, target, fix) from error
    except SystemExit as error:
        fix = f"it ended the program while it was loaded; put such calls below if __name__ == '__main__':{frames(error)}"
        raise ConfigError(field, target, fix) from error
    except Exception as error:
        if target.startswith("runnel."):  # a mistake of ours
            raise
        raise ConfigError(field, target, f"loading it raised {told(error)}") from error


def load_object(target: str, field: str) -> Any:
    """The object that `module:name` or `file.py:name` names.

    >>> load_object("math:pi", "x") > 3
    True
    """
    module_name, _, name = target.rpartition(":")
    if not module_name:
        raise ConfigError(field, target, "write module:name or path/to/file.py:name")
    found: object = load_module(module_name, field)
    for part in name.split("."):
        if not hasattr(found, part):
            close = difflib.get_close_matches(part, [n for n in dir(found) if not n.startswith("_")], n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ConfigError(field, target, f"{module_name} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def called(factory: object, *args: object, field: str, target: object, how: str) -> Any:
    """Call `factory(*args)`. If that fails, the error says `how` it is called, and where it is written."""
    if not callable(factory):
        raise ConfigError(field, target, f"is a {type(factory).__name__} and no function; it is called as {how}")
    try:
        return factory(*args)
    except TypeError as error:
        if not called_wrongly(error):
            raise
        place = place_of(factory)
        raise ConfigError(field, target, f"{error}; it is called as {how}" + (f"; see {place}" if place else "")) from error


def _walk(module: ModuleType, name: str) -> object:
    """The object that `name` means in `module` now. For a bound method, or a name that was reused, it is not `obj`."""
    found: object = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def is_reference(text: str) -> bool:
    """Whether `text` looks like `module:name` or `file.py:name` (Gymnasium's `module:EnvId-v0` does not)."""
    module_name, _, name = text.rpartition(":")
    return bool(module_name) and name.replace(".", "").replace("_", "").isalnum() and "-" not in name


def own_name(text: str) -> str:
    """A name to show to people: for a user's file with an absolute path, only the name of the file.

    >>> own_name("/home/me/work/my_env.py:MyEnv"), own_name("tensor:/work/grid.py:Grid"), own_name("/work/algo.py")
    ('my_env.py:MyEnv', 'tensor:grid.py:Grid', 'algo.py')
    >>> own_name("CartPole-v1"), own_name("ALE/Pong-v5"), own_name("package.module:Class")
    ('CartPole-v1', 'ALE/Pong-v5', 'package.module:Class')
    """
    kind, found, path = text.partition(":/") if not text.startswith("/") else ("", "", text[1:])
    if not found and not text.startswith("/"):
        return text
    return (f"{kind}:" if kind else "") + Path(f"/{path}").name


def reference(obj: object) -> str | None:
    """The name by which another process could load `obj`, or None (a lambda, a local class, a notebook's function)."""
    name = getattr(obj, "__qualname__", "")
    module = inspect.getmodule(obj)
    if module is None or not name or "<" in name or _walk(module, name) != obj:
        return None
    if module.__name__ == "__main__" or module.__name__.startswith("runnel_user_"):
        file = getattr(module, "__file__", None)
        return f"{Path(file).resolve()}:{name}" if file else None
    return f"{module.__name__}:{name}"
