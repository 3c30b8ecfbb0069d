"""The tool `python`: an interpreter with memory for each conversation, in the sandbox.

    tools = [python_tool(SessionConfig(wall_s=2.0))]

The interpreter's state cannot be saved: a conversation is resumed by making its calls again.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from runnel.core.contracts.chat import Tool, ToolFailure
from runnel.core.errors import ConfigError
from runnel.llm.sandbox.session import SandboxSession, SessionConfig, SessionPool, most_sessions

DESCRIPTION = (
    "Runs Python code and returns what it prints, and the value of its last line. Variables, functions, imports and files stay "
    "for later calls of this conversation. There is no network, and no other program can be started."
)
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The Python code to run."}},
    "required": ["code"],
    "additionalProperties": False,
}
KINDS = {"failed": "raised", "memory": "raised", "timeout": "timeout", "output": "too_long", "died": "died"}
"""The kind of failure (`TOOL_ERRORS`) for each status of a call. An error of the model's own code is an ordinary thing for an
interpreter, but is counted: some algorithms weigh conversations by the share of calls that raised."""
NOTHING = "(no output)"
MOST = 2048
"""Most sessions of a pool that tools share: as many as conversations of an actor, or its kernel's limits are lower."""
WARM = 2
WAIT_S = 1.0
"""How long a call waits for a session where all are open. The conversations that have them may need this very thread to end."""
_pools: dict[tuple[int, SessionConfig], SessionPool] = {}
_lock = threading.Lock()


def python_tool(config: SessionConfig | None = None, *, pool: SessionPool | None = None) -> Tool:
    """The tool `python`, with a session of its own for each conversation that calls it. Sessions come from `pool`, or from one
    that all tools with the same `config` share in this process."""
    source = partial(shared_pool, config or SessionConfig()) if pool is None else lambda: pool
    return Tool("python", DESCRIPTION, PARAMETERS, lambda: PythonSession(source))


def shared_pool(config: SessionConfig) -> SessionPool:
    """The pool of this process for `config`; it is closed at the end of the process."""
    with _lock:
        key = (os.getpid(), config)  # a pool does not survive a fork
        if key not in _pools:
            _pools[key] = pool = SessionPool(config, warm=WARM, most=max(1, min(MOST, most_sessions(WARM))))
            atexit.register(pool.close)
        return _pools[key]


class PythonSession:
    """The tool in one conversation. Its session is taken at the first call: many conversations make none."""

    def __init__(self, source: Callable[[], SessionPool]) -> None:
        source().check()  # where code cannot be confined, the run must not start: this is no failure of a call
        self._source, self._closed = source, False
        self._session: SandboxSession | None = None
        self._lock = threading.Lock()

    def call(self, arguments: Mapping[str, Any]) -> str:
        """What the code printed, and the value of its last line. If there is an error, a `ToolFailure` with all of it."""
        code = arguments.get("code")
        if not isinstance(code, str):
            raise ToolFailure("python needs `code`, a string", kind="arguments")
        result = self._taken().run(code)
        if result.status != "ok":
            raise ToolFailure(result.text, kind=KINDS[result.status])
        return result.text or NOTHING

    def _taken(self) -> SandboxSession:
        with self._lock:
            if self._session is None:
                if self._closed:
                    raise ToolFailure("this conversation is over", kind="died")
                self._session = self._take()
            return self._session

    def _take(self) -> SandboxSession:
        try:
            return self._source().take(WAIT_S)
        except TimeoutError as error:  # no mistake of the model's
            fix = "play fewer conversations at a time (num_prompts, group_size), or raise `ulimit -Hn`"
            raise ConfigError("tools", "python", f"{error}; {fix}") from error

    def close(self) -> None:
        """End the session."""
        with self._lock:
            self._closed = True
            if self._session is not None:
                self._session.close()
