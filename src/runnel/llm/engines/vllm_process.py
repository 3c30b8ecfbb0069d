"""A vLLM child process, started and stopped by its engine: messages with deadlines, weights through shared memory.

The child ends when this process ends: the kernel sends it a signal, and its socket closes. `close` ends it at once. Errors
include the last lines that it wrote. The kernel also sends the signal when the thread that started the child ends, so start it
from a thread that stays alive.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import re
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from torch import Tensor

from runnel.core.errors import ConfigError, EngineLost, RunnelError, WorkerFailure
from runnel.core.framing import Message, MessageSocket, TruncatedFrame
from runnel.core.process import ChildProgram, exit_text, last_text
from runnel.core.worker import progressed
from runnel.llm.engines import vllm_server

if TYPE_CHECKING:
    from runnel.llm.engines.vllm import VllmConfig

PYTHON = "RUNNEL_VLLM_PYTHON"
"""Environment variable: the interpreter that has vLLM."""
NAME = "vllm"
TAIL_LINES = 20
LOG_BYTES = 20_000
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)
"""Exit codes of a process that was killed from outside: by a person, or by the kernel when memory runs out."""
CHATTER = re.compile(r"^\s*$|\bINFO\b|\bWARNING\b|\bit/s\]|Loading safetensors")
"""Lines that vLLM writes in healthy runs too: error messages leave them out."""
ERROR = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*")
CAUSES = (
    (
        re.compile(r"Unsupported CPU attention configuration: head_dim=(\d+)"),
        "vLLM's build for CPUs has no attention for heads of size {0}; use a model with another head size (64 and 128 are "
        "always there), or engine.kind native",
    ),
    (
        re.compile(r"(?i)out of ?memory|less than requested memory|No available memory for the cache|signal (SIGKILL)"),
        "if memory ran out, change engine.vllm.cpu_cache_gib (on a CPU) or engine.vllm.memory_share (on a GPU)",
    ),
)
"""Known errors of vLLM, each with its meaning and what to change."""
STOP_S = 5.0
"""The most seconds to wait for the exit code of a child whose socket is closed."""
LOOK_S = 1.0
"""While it waits for a reply, this process reports every so many seconds that it is alive."""
ALIGN = 64
"""Each parameter starts at a multiple of so many bytes, as torch requires and processors prefer."""


class VllmProcess:
    """One child process. `ask` sends a message and waits for the reply; the first call also waits until vLLM is ready."""

    def __init__(self, orders: Message, config: VllmConfig) -> None:
        self._timeout_s, self._start_timeout_s = config.timeout_s, config.start_timeout_s
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._memory_fd = _anonymous_file()
        self._memory: mmap.mmap | None = None
        self._began, self._ready = time.monotonic(), False
        ours, theirs = socket.socketpair()
        with theirs:
            orders = {**orders, "parent": os.getpid(), "socket": theirs.fileno(), "memory": self._memory_fd}
            self._python = find_python(config.python)
            env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
            self._child = ChildProgram(
                [self._python, "-P", "-u", str(Path(vllm_server.__file__).resolve()), json.dumps(orders)],
                stdout=self._log,
                stderr=self._log,
                env=env | ({"OMP_NUM_THREADS": str(config.threads)} if config.threads else {}),
                pass_fds=(theirs.fileno(), self._memory_fd),
                new_session=True,
            )
        ours.settimeout(config.timeout_s)  # limits sending: a child that stops reading must not block this process
        self._line = MessageSocket(ours)
        self._finalizer = weakref.finalize(self, _end, self._child, self._line, self._memory_fd)

    @property
    def pid(self) -> int:
        return self._child.pid

    # -------------------------------------------------------------------------------------------------------- messages
    def ask(self, message: Message) -> Message:
        """Send `message` and return the reply. Raises a `WorkerFailure` if the child dies or does not reply in time."""
        self.wait_ready()
        return self._exchange(message, self._timeout_s, "engine.vllm.timeout_s")

    def wait_ready(self) -> None:
        """Wait until vLLM is ready for requests."""
        if self._ready:
            return
        left = self._began + self._start_timeout_s - time.monotonic()
        self._exchange(None, max(left, 0.1), "engine.vllm.start_timeout_s")
        self._ready = True

    def _exchange(self, message: Message | None, timeout_s: float, field: str) -> Message:
        if not self._finalizer.alive:
            raise WorkerFailure(NAME, "has been closed")
        try:
            if message is not None:
                self._line.send(message)
            answer = self._await(timeout_s)
        except TimeoutError:
            raise self._failure(f"did not answer within {timeout_s:.0f} s ({field})", lost=self._ready) from None
        if answer is None:
            code = self._exit_code()
            raise self._failure(how_it_ended(code, self.wrote()), lost=self._ready or code in FROM_OUTSIDE, code=code)
        if "error" in answer:
            self._exit_code()  # wait for the exit: the lines that it writes until then are part of the message
            raise self._failure(f"failed with {answer['error']}", lost=False)
        return answer

    def _await(self, timeout_s: float) -> Message | None:
        """Wait for a reply; None if the child has ended. The wait has its own deadline, so this process cannot hang."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                try:
                    return self._line.next_message(min(LOOK_S, left))
                except TruncatedFrame:
                    return None
            progressed()
        raise TimeoutError

    def _exit_code(self) -> int | None:
        self._child.wait(STOP_S)
        return self._child.code

    def _failure(self, what: str, *, lost: bool, code: int | None = None) -> RunnelError:
        """The error for a child that failed. `lost`: it ended without naming a cause, so a new child may succeed."""
        wrote = self.wrote()
        self.close()
        if "No module named 'vllm'" in wrote:
            fix = f"this interpreter has no vLLM; give one that has, here or in {PYTHON} (docs/guides/engines.md)"
            return ConfigError("engine.vllm.python", self._python, fix)
        lines = "\n".join([line for line in wrote.splitlines() if not CHATTER.search(line)][-TAIL_LINES:])
        if code in FROM_OUTSIDE:  # no line of the log explains a kill
            lines = ""
        told = f"{what.rstrip('.')}{explained(what)}" + (f"\nIts last lines:\n{lines}" if lines else "")
        return EngineLost(NAME, told) if lost else WorkerFailure(NAME, told)

    def wrote(self) -> str:
        """The last part of the child's output."""
        return last_text(self._log, LOG_BYTES)

    # --------------------------------------------------------------------------------------------------------- weights
    def write(self, params: Mapping[str, Tensor]) -> Message:
        """Copy `params` into shared memory. Returns the message that describes them: manifest, size and checksum."""
        manifest, size = _layout(params)
        if self._memory is None or len(self._memory) < size:
            os.ftruncate(self._memory_fd, size)
            self._memory = mmap.mmap(self._memory_fd, size)
        for (_, _, shape, offset), value in zip(manifest, params.values(), strict=True):
            target = torch.frombuffer(self._memory, dtype=value.dtype, count=math.prod(shape), offset=offset)
            target.copy_(value.detach().reshape(-1))
        return {"manifest": manifest, "size": size, "checksum": vllm_server.checksum(self._memory, size)}

    # ------------------------------------------------------------------------------------------------------------- end
    def close(self) -> None:
        """End the child at once. Its resources are free when this returns."""
        self._finalizer()


def how_it_ended(code: int | None, wrote: str) -> str:
    """How a child that sent no error has ended, in words. If it ended by itself, with the last error that it wrote.

    >>> how_it_ended(-11, "")
    'was killed by signal SIGSEGV'
    >>> how_it_ended(1, "Traceback\\nValueError: 3\\n[rank0] a harmless line")
    'ended by itself with exit code 1 (ValueError: 3)'
    """
    if code is None:
        return "does not listen any more"
    if code < 0:
        return exit_text(code)
    errors = [line for line in wrote.splitlines() if ERROR.match(line)]
    return f"ended by itself with exit code {code}" + (f" ({errors[-1]})" if errors else "")


def explained(what: str) -> str:
    """The meaning of a known error and its fix; empty for other errors."""
    found = next(((match, text) for known, text in CAUSES if (match := known.search(what))), None)
    return "" if found is None else f": {found[1].format(*found[0].groups())}"


def find_python(given: str) -> str:
    """The interpreter that has vLLM: `given`, else the one in the environment variable, else this one."""
    python = given or os.environ.get(PYTHON, "") or sys.executable
    if not Path(python).is_file():
        raise ConfigError(
            "engine.vllm.python", python, f"there is no such file; give the interpreter that has vLLM, here or in {PYTHON}"
        )
    return python


def _layout(params: Mapping[str, Tensor]) -> tuple[list[list[Any]], int]:
    """`[name, dtype, shape, offset]` of each parameter, and the size of all in bytes."""
    manifest, size = [], 0
    for name, value in params.items():
        manifest.append([name, str(value.dtype).removeprefix("torch."), list(value.shape), size])
        size += -(-value.numel() * value.element_size() // ALIGN) * ALIGN
    return manifest, size


def _anonymous_file() -> int:
    """Memory without a name, which the kernel frees when both processes have ended, whatever the cause."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("runnel-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _end(child: ChildProgram, line: MessageSocket, memory_fd: int) -> None:
    """Close the socket, which ends the child's loop, then kill its session with all processes that it started."""
    line.close()
    os.close(memory_fd)
    child.end()
