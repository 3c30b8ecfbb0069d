"""The program of a worker process: it loads one function by name and calls it until its parent ends.

It is started by its path (`processes.py`). Torch loads only if the function uses it, since public names load on first use.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any


def plain(value: Any) -> object:
    """Numbers and arrays of numpy and torch, and other collections, as plain data: a function may return any of them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Iterable):
        return dict(value) if isinstance(value, Mapping) else list(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def serve(socket_fd: int, parent: int) -> None:
    """Load the function, then answer one call after another until the process `parent` ends."""
    from runnel.core.calls.pool import ANY, CallOutcome, call, failed
    from runnel.core.framing import MessageSocket
    from runnel.core.process import die_with_parent
    from runnel.core.resolve import load_object

    def told(outcome: CallOutcome) -> dict[str, object]:
        return {"reason": outcome.reason, "lines": outcome.lines, "transient": outcome.transient}

    die_with_parent(parent)
    connection = MessageSocket(socket.socket(fileno=socket_fd), encode=plain)
    start = connection.next_message()
    if start is None:
        return
    sys.path[:] = start["path"]
    try:
        own = load_object(start["fn"], start["name"])
        fn = partial(own, **start["options"])  # arguments of a call replace options of the same name
    except ANY as error:
        first, newline, lines = str(error).partition("\n")  # it has the lines of the file, if there are any
        reason = f"cannot load {start['fn']}: {type(error).__name__}: {first}"
        connection.send(told(CallOutcome(reason=reason, lines=newline + lines)))
        return
    connection.send({"ready": True})
    while (task := connection.next_message()) is not None:
        try:
            connection.send({"value": call(fn, task["args"], task["named"])})
        except ANY as error:
            connection.send(told(failed(error, own)))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])  # import runnel from here, and nothing from this file's folder
    serve(int(sys.argv[1]), int(sys.argv[2]))
