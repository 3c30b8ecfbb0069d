"""The program of a reward worker process: it loads one function by name and computes jobs until its parent ends.

It is started by its path (`processes.py`). Torch loads only if the function uses it, since public names load on first use.
"""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any


def plain(value: Any) -> object:
    """Numbers and arrays of numpy and torch as plain numbers and lists, because a reward function may return any of them."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def serve(socket_fd: int, parent: int) -> None:
    """Load the function, then compute one job after another until the process `parent` ends."""
    from runnel.core import user_code
    from runnel.core.framing import MessageSocket
    from runnel.core.process import die_with_parent
    from runnel.core.resolve import load_object
    from runnel.llm.rewards.judging import call

    die_with_parent(parent)
    connection = MessageSocket(socket.socket(fileno=socket_fd), encode=plain)
    start = connection.next_message()
    if start is None:
        return
    sys.path[:] = start["path"]
    try:
        own = load_object(start["fn"], "reward")
        fn = partial(own, **start["options"])  # columns replace options of the same name
    except (Exception, SystemExit) as error:
        first, newline, lines = str(error).partition("\n")  # it has the lines of the file, if there are any
        why = f"{type(error).__name__}: {first}"
        connection.send({"failure": f"cannot load {start['fn']}: {why}", "lines": newline + lines})
        return
    connection.send({"ready": True})
    while (job := connection.next_message()) is not None:
        try:
            connection.send({"values": call(fn, job["prompts"], job["completions"], job["columns"])})
        except (Exception, SystemExit) as error:  # user code: the parent counts it
            connection.send({"failure": user_code.summary(error), "lines": user_code.lines_of(error, own)})


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])  # import runnel from here, and nothing from this file's folder
    serve(int(sys.argv[1]), int(sys.argv[2]))
