"""A vLLM process, started and stopped by its engine: messages with deadlines, weights through shared memory.

The process dies with this one (the kernel sees to it, and its socket closes), `close` ends it at once, and whatever goes wrong
is told with the last lines that it wrote. It is bound to the thread that starts it: start it from one that lasts.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from runnel.core.errors import ConfigError, RunnelError, WorkerFailure
from runnel.llm.engines import vllm_server
from runnel.llm.engines.vllm_server import Message, Wire

PYTHON = "RUNNEL_VLLM_PYTHON"
"""Environment variable: the interpreter that has vLLM."""
NAME = "vllm"
TAIL_LINES = 20
STOP_S = 5.0
ALIGN = 64


class VllmProcess:
    """One child. `ask` sends a message and waits for its answer; the first one also waits for vLLM to be ready."""

    def __init__(self, orders: Message, *, python: str, threads: int, start_timeout_s: float, timeout_s: float) -> None:
        self.start_s = 0.0
        """Seconds from the start until vLLM was ready."""
        self._timeout_s, self._start_timeout_s = timeout_s, start_timeout_s
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._memory_fd = _anonymous_file()
        self._memory: mmap.mmap | None = None
        self._began, self._ready = time.monotonic(), False
        ours, theirs = socket.socketpair()
        with theirs:
            orders = {**orders, "parent": os.getpid(), "socket": theirs.fileno(), "memory": self._memory_fd}
            self._python = find_python(python)
            self._child = self._spawn(orders, threads)
        self._wire = Wire(ours)
        self._finalizer = weakref.finalize(self, _end, self._child, ours, self._memory_fd)

    @property
    def pid(self) -> int:
        return self._child.pid

    def _spawn(self, orders: Message, threads: int) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        if threads:
            env["OMP_NUM_THREADS"] = str(threads)
        return subprocess.Popen(
            [self._python, "-P", "-u", str(Path(vllm_server.__file__).resolve()), json.dumps(orders)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=env,
            pass_fds=(orders["socket"], orders["memory"]),
            start_new_session=True,
        )

    # -------------------------------------------------------------------------------------------------------- messages
    def ask(self, message: Message) -> Message:
        """The answer to `message`; a `WorkerFailure` if the child dies or does not answer in time."""
        self.wait_ready()
        return self._exchange(message, self._timeout_s)

    def wait_ready(self) -> None:
        """Return when vLLM can take requests."""
        if self._ready:
            return
        left = self._began + self._start_timeout_s - time.monotonic()
        self._exchange(None, max(left, 0.1))
        self._ready, self.start_s = True, time.monotonic() - self._began

    def _exchange(self, message: Message | None, timeout_s: float) -> Message:
        if not self._finalizer.alive:
            raise WorkerFailure(NAME, "has been closed")
        try:
            if message is not None:
                self._wire.send(message)
            return self._wire.receive(timeout_s)
        except TimeoutError:
            raise self._failure(f"did not answer within {timeout_s:.0f} s") from None
        except (EOFError, BrokenPipeError):
            raise self._failure(f"ended by itself with exit code {self._exit_code()}") from None

    def _exit_code(self) -> int | None:
        try:
            return self._child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return None

    def _failure(self, what: str) -> RunnelError:
        tail = self.tail()
        self.close()
        if "No module named 'vllm'" in tail:
            fix = f"this interpreter has no vLLM; give one that has, here or in {PYTHON} (docs/engines.md)"
            return ConfigError("engine.vllm.python", self._python, fix)
        return WorkerFailure(NAME, f"{what}. Its last lines:\n{tail}")

    def tail(self) -> str:
        """The last lines that the child wrote."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 8000))
        return "\n".join(self._log.read().decode(errors="replace").splitlines()[-TAIL_LINES:])

    # --------------------------------------------------------------------------------------------------------- weights
    def write(self, params: Mapping[str, Tensor]) -> Message:
        """Put `params` where the child can read them; what to tell it about them."""
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
        """End the child, now; what it held is free when this returns."""
        self._finalizer()


def find_python(given: str) -> str:
    """The interpreter that has vLLM: as given, else of the environment, else this one."""
    python = given or os.environ.get(PYTHON, "") or sys.executable
    if not Path(python).is_file():
        raise ConfigError(
            "engine.vllm.python", python, f"there is no such file; give the interpreter that has vLLM, here or in {PYTHON}"
        )
    return python


def _layout(params: Mapping[str, Tensor]) -> tuple[list[list[Any]], int]:
    """`[name, dtype, shape, offset]` of each, and the size of all."""
    manifest, size = [], 0
    for name, value in params.items():
        manifest.append([name, str(value.dtype).removeprefix("torch."), list(value.shape), size])
        size += -(-value.numel() * value.element_size() // ALIGN) * ALIGN
    return manifest, size


def _anonymous_file() -> int:
    """Memory without a name: however both processes end, the kernel takes it back."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("runnel-weights")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _end(child: subprocess.Popen[bytes], sock: socket.socket, memory_fd: int) -> None:
    """The socket closes, which ends the child's loop; its whole session is killed, so nothing that it started stays."""
    sock.close()
    os.close(memory_fd)
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
