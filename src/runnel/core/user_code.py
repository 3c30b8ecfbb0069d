"""Exceptions in a user's code: whether the user's code raised them, and how an error shows the lines of the user's files.

The functions return text, because text can be sent to another process. This module imports only the standard library, because
processes that compute rewards start without numpy and torch.
"""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = tuple(os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_TYPED_IN = ("<stdin", "<string>", "<ipython", "<python-input")
_FIRST, _LAST = 3, 5
"""Number of frames of a long stack that are shown from its start, and from its end."""
_LONGEST = 300
_CAUSES = 3
_ANY = (Exception,)
"""What a user's `__str__` may raise."""

Frame = traceback.FrameSummary


def summary(error: BaseException) -> str:
    """An exception in one line: its type and its message.

    >>> summary(KeyError("left")), summary(AssertionError())
    ("KeyError: 'left'", 'AssertionError')
    """
    text = error.msg if isinstance(error, SyntaxError) else words(error)
    said = " ".join(text.split())
    shown = said if len(said) <= _LONGEST else said[:_LONGEST] + " ..."
    return f"{type(error).__name__}: {shown}" if shown else type(error).__name__


def words(error: BaseException) -> str:
    """The message of an exception. Its class may be a user's, and fail to say it."""
    try:
        return str(error)
    except _ANY:
        return ""


def told(error: BaseException) -> str:
    """`summary`, and below it the lines of the user's code in the exception's stack."""
    return summary(error) + frames(error)


def frames(error: BaseException) -> str:
    """The lines of the user's code in the stack of `error`, outermost first, each on a new line; empty if there are none.

    Frames of runnel are left out. Frames of libraries are left out if there are frames of the user.
    """
    found = "".join(_shown(f) for f in _cut(user_frames(error)))
    for _ in range(_CAUSES):
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if before is None:
            break
        error, where = before, user_frames(before)
        found += f"\n  because of {summary(before)}" + (f" ({_place(where[-1])})" if where else "")
    return found


def user_frames(error: BaseException) -> list[Frame]:
    """The frames of `error` in the user's code; if there are none, the innermost frame in a library."""
    stack = list(_inner(error))
    own = [
        f for f, inner in zip(stack, [*stack[1:], None], strict=False) if _whose(f.filename) == "user" and not _made(f, inner)
    ]
    return own or [f for f in stack if _whose(f.filename) == "library" and not f.filename.startswith("<")][-1:]


def _made(frame: Frame, inner: Frame | None) -> bool:
    """Whether a frame is the constructor that a dataclass made, on its way to the checks of a class of runnel."""
    return frame.filename == "<string>" and frame.name == "__init__" and inner is not None and inner.name == "__post_init__"


def is_users(error: BaseException) -> bool:
    """Whether the user's code raised `error`, directly or in a library that it called. False if runnel raised it."""
    whose = [_whose(f.filename) for f in _inner(error)]
    return next((w == "user" for w in reversed(whose) if w != "library"), False)


def called_wrongly(error: BaseException) -> bool:
    """Whether no line of the user's code raised: the call itself failed (its arguments), or the returned value is wrong."""
    return not any(_whose(f.filename) == "user" for f in _inner(error))


def lines_of(error: BaseException, called: object) -> str:
    """`frames`, or, if the call itself failed, the place where `called` is written."""
    place = place_of(called) if called_wrongly(error) else ""
    return f"\n  {place}" if place else frames(error)


def place_of(obj: Any) -> str:
    """`file.py:12`, where a function or the constructor of a class is written; empty if it is not the user's code."""
    made = vars(obj).get("__init__", obj) if isinstance(obj, type) else obj
    try:
        file, line = inspect.getsourcefile(made) or "", inspect.getsourcelines(made)[1]
    except (TypeError, OSError):
        return ""
    return _place(Frame(file, line, "")) if file and _whose(file) == "user" else ""


def brief(text: str) -> str:
    """The first line of a text that `told` made, with the innermost place.

    >>> brief("KeyError: 'left'\\n  a.py:3, in step\\n    return x['left']")
    "KeyError: 'left' (a.py:3, in step)"
    """
    first, *rest = text.splitlines() or [""]
    places = [line.strip() for line in rest if line.startswith("  ") and not line.startswith(("   ", "  because of", "  ..."))]
    return f"{first} ({places[-1]})" if places else first


def mistake(text: str) -> str:
    """A key that is equal for equal mistakes, made from a text that `told` made.

    It is the exception's type and place. If there is no place, it is the message without its numbers.

    >>> mistake("KeyError: 'left'\\n  a.py:3, in step") == mistake("KeyError: 'right'\\n  a.py:3, in step")
    True
    """
    first, *_ = text.splitlines() or [""]
    return re.sub(r"\d+", "N", first) if brief(text) == first else first.partition(":")[0] + brief(text).removeprefix(first)


def _inner(error: BaseException) -> Iterator[Frame]:
    """The frames of an exception, from the first frame of runnel on; earlier frames belong to the program that called runnel.

    The place of a syntax error comes last.
    """
    stack = traceback.extract_tb(error.__traceback__)
    first = next((i for i, f in enumerate(stack) if _whose(f.filename) == "ours"), 0)
    yield from stack[first:]
    if isinstance(error, SyntaxError) and error.filename:
        yield Frame(error.filename, error.lineno, "", line=error.text)


def _whose(file: str) -> Literal["ours", "library", "user"]:
    if file.startswith("<"):
        return "user" if file.startswith(_TYPED_IN) else "library"
    path = os.path.realpath(file)
    if path.startswith(_OURS):
        return "ours"
    return "library" if path.startswith(_LIBRARIES) or any(part in path for part in _INSTALLED) else "user"


def _cut(found: list[Frame]) -> list[Frame | int]:
    """A long stack (a recursion) with the number of left-out frames in place of its middle."""
    if len(found) <= _FIRST + _LAST + 1:
        return list(found)
    return [*found[:_FIRST], len(found) - _FIRST - _LAST, *found[-_LAST:]]


def _shown(frame: Frame | int) -> str:
    if isinstance(frame, int):
        return f"\n  ... {frame} more frames ..."
    line = (frame.line or "").strip()
    return f"\n  {_place(frame)}" + (f"\n    {line}" if line else "")


def _place(frame: Frame) -> str:
    """`file.py:12, in step`. The path is relative if the file is below the current folder."""
    path = frame.filename
    if not path.startswith("<"):
        near = os.path.relpath(path)
        path = path if near.startswith(os.pardir) else near
    return f"{path}:{frame.lineno}" + (f", in {frame.name}" if frame.name and frame.name != "<module>" else "")
