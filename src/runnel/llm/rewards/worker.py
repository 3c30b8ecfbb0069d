"""The program of a reward worker process: loads one function by name and answers jobs until its parent is gone.

It is started by its path (`processes.py`), so that `runnel/__init__.py`, and torch with it, load only if the function asks.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1


def light_package() -> None:
    """Make `runnel` importable without running its `__init__`: that happens when one of its public names is asked for."""
    root = Path(__file__).resolve().parents[2]
    package = types.ModuleType("runnel")
    package.__path__ = [str(root)]

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        del package.__dict__["__getattr__"]
        spec = importlib.util.spec_from_file_location("runnel", root / "__init__.py", submodule_search_locations=[str(root)])
        assert spec is not None
        assert spec.loader is not None
        spec.loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = load
    sys.modules["runnel"] = package


def die_with(parent: int) -> None:
    """Be killed by the kernel when the parent ends (Linux); the closed socket says so elsewhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def receive(connection: socket.socket, frames: Any) -> Any:
    """The next message; None when the parent has gone."""
    while True:
        for message in frames.take():
            return message
        data = connection.recv(1 << 16)
        if not data:
            return None
        frames.feed(data)


def serve(connection: socket.socket) -> None:
    """Load the function, then answer one job after another."""
    from runnel.core import user_code
    from runnel.core.resolve import load_object
    from runnel.llm.rewards.components import with_options
    from runnel.llm.rewards.judging import call
    from runnel.llm.rewards.wire import Frames, frame

    frames = Frames()
    start = receive(connection, frames)
    sys.path[:] = start["path"]
    try:
        own = load_object(start["fn"], "reward")
        fn = with_options(own, start["options"])
    except (Exception, SystemExit) as error:
        first, newline, lines = str(error).partition("\n")  # it has the lines of the file, if there are any
        why = f"{type(error).__name__}: {first}"
        connection.sendall(frame({"failure": f"cannot load {start['fn']}: {why}", "lines": newline + lines}))
        return
    connection.sendall(frame({"ready": True}))
    while (job := receive(connection, frames)) is not None:
        try:
            answer = frame({"values": call(fn, job["prompts"], job["completions"], job["columns"])})
        except (Exception, SystemExit) as error:  # user code: the parent counts it
            answer = frame({"failure": user_code.summary(error), "lines": user_code.lines_of(error, own)})
        connection.sendall(answer)


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder is not a place to import from
    die_with(int(sys.argv[2]))
    light_package()
    serve(socket.socket(fileno=int(sys.argv[1])))
