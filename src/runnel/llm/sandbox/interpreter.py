"""The parent's side of confined interpreters: what they are forked from, and the exchange with one of them.

Nothing that an interpreter sends is trusted: its answers are bounded in size and in time, are read without waiting, and are
plain data. One that breaks these rules is killed.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Literal

from runnel.core.errors import ConfigError
from runnel.core.process import ChildProgram
from runnel.core.state import State
from runnel.llm.sandbox import plain
from runnel.llm.sandbox.folder import sandbox_folder
from runnel.llm.sandbox.run import ENVIRONMENT, FLOOD, GONE_S, PROGRAM, PYTHON, START_S, compiled, held

MODULES = ("confine", "mounts", "plain", "child", "loop", "zygote")
"""Modules of the child, each after those that it imports."""
GRACE_S = 1.0
"""The most seconds from the end of a call's time, at which its code is interrupted, to the answer. Then it is killed."""
CHUNK = 1 << 16
ENDED = "ended"
"""Why there is no answer: its end of the pipe is closed."""
ANSWERS = ("ok", "failed", "timeout", "output", "memory")
End = Literal["timeout", "output", "died"]


class ZygoteLost(Exception):
    """The process that interpreters are forked from has ended."""


class Zygote:
    """The process that interpreters are forked from (`zygote.py`)."""

    def __init__(self, order: State) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(START_S)
        self._said = os.memfd_create("zygote", os.MFD_CLOEXEC)
        parts = {name: compiled(name) for name in MODULES}
        asked = held(order)
        self._process = ChildProgram(
            [*PYTHON, PROGRAM, ",".join(f"{n}={fd}" for n, fd in parts.items()), str(asked), str(theirs.fileno())],
            pass_fds=(*parts.values(), asked, theirs.fileno()),
            env=ENVIRONMENT,
            stdout=self._said,
            stderr=self._said,
            new_session=True,
        )
        os.close(asked)
        theirs.close()

    def fork(self, folder: str, fds: list[int]) -> None:
        """Have an interpreter forked, with the pipes `fds`."""
        try:
            socket.send_fds(self._control, [folder.encode()], fds)
        except OSError as error:
            raise ZygoteLost(self.why()) from error

    def alive(self) -> bool:
        return not self._process.ended()

    def why(self) -> str:
        """The end of what it has written: an error, if it has failed."""
        return os.pread(self._said, CHUNK, 0)[-500:].decode(errors="replace").strip()

    def close(self) -> None:
        """End it, and with it all interpreters. A second call changes nothing."""
        if self._said >= 0:
            self._control.close()
            self._process.end(GONE_S)
            os.close(self._said)
            self._said = -1


@dataclass(frozen=True)
class Exchanged:
    """What came of one call. `answer` is None if there was none; then `end` says why."""

    answer: list[str] | None
    end: End
    printed: str
    why: str = ""


class Interpreter:
    """One confined interpreter. Any thread may use it, one at a time."""

    def __init__(self, zygote: Zygote, *, output_kb: int) -> None:
        self._most = output_kb << 10
        self._room = ExitStack()
        self._fds: list[int] = []
        self._status, status = socket.socketpair()
        self._number = 0
        self._first = b""
        self.facts: State = {}
        with ExitStack() as undo:
            undo.callback(self._release)
            folder = self._room.enter_context(sandbox_folder())
            with ExitStack() as theirs:
                theirs.callback(status.close)
                pipes = [self._pipe(theirs, reads=reads) for reads in (False, True, True)]
                zygote.fork(folder, [status.fileno(), *pipes])
            undo.pop_all()

    def _pipe(self, theirs: ExitStack, *, reads: bool) -> int:
        """Make a pipe, keep the end that this process `reads` or writes, which never waits, and return the other."""
        ours, other = os.pipe() if reads else os.pipe()[::-1]
        theirs.callback(os.close, other)
        self._fds.append(ours)
        os.set_blocking(ours, False)
        return other

    # --------------------------------------------------------------------------------------------------------- its start
    def wait_ready(self) -> bool:
        """Wait until it is confined, and keep what it says of that in `facts`; False if it has ended before."""
        deadline = time.monotonic() + START_S
        while not self.facts and self._read_status(deadline):
            line, found, rest = self._first.partition(b"\n")
            if found:
                self.facts, self._first = json.loads(line), rest
        return bool(self.facts)

    def _read_status(self, deadline: float) -> bool:
        """Read more of what its trusted processes say; False at the end, or if nothing comes."""
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1e3):
            return False
        data = self._status.recv(CHUNK)
        self._first += data
        return bool(data)

    # ------------------------------------------------------------------------------------------------------------- calls
    def has_ended(self) -> bool:
        """Whether its end of the answers is closed."""
        poll = select.poll()
        poll.register(self._fds[1], 0)
        return bool(poll.poll(0))

    def exchange(self, code: str, timeout_s: float, *, cpu_s: int) -> Exchanged:
        """Send code, and wait for the answer: at most `timeout_s` and `GRACE_S`."""
        self._number += 1
        self._take_output(_Output(0))  # what threads of earlier calls have printed since
        exchange = _Exchange(self._number, self._most, plain.to_bytes([self._number, code, timeout_s, cpu_s]))
        end, why = self._exchange(exchange, time.monotonic() + timeout_s + GRACE_S)
        self._take_output(exchange.output)
        return Exchanged(exchange.answer, end, exchange.output.text(), why)

    def _exchange(self, exchange: _Exchange, deadline: float) -> tuple[End, str]:
        asked, said, output = self._fds
        poll = select.poll()
        poll.register(asked, select.POLLOUT)
        for fd in (said, output):
            poll.register(fd, select.POLLIN)
        while exchange.answer is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return "timeout", ""
            for fd, _ in poll.poll(left * 1e3):
                if (fd == asked and not exchange.send(fd)) or (fd == output and not exchange.output.take(fd)):
                    poll.unregister(fd)
                elif fd == said and (why := exchange.receive(fd)) is not None:
                    return "died", why
            if exchange.output.dropped > FLOOD:
                return "output", ""
        return "died", ""

    def _take_output(self, output: _Output) -> None:
        """Take what has been printed already, of a thread that goes on printing at most 16 MB."""
        for _ in range(256):
            if not output.take(self._fds[2], wait=False):
                return

    # ------------------------------------------------------------------------------------------------------------ the end
    def end(self) -> State:
        """Kill it, and remove its folder; returns its `exit` code and its `cpu_s`, if they are known."""
        if not self._fds:
            return {}
        deadline = time.monotonic() + GONE_S
        with suppress(OSError):  # it has ended already
            # not `close`: that would change nothing while a fork of this process has the descriptor too
            self._status.shutdown(socket.SHUT_WR)
        while self._read_status(deadline):
            pass
        facts: State = {}
        for line in self._first.splitlines(keepends=True):
            facts |= json.loads(line) if line.endswith(b"\n") else {}  # if it was killed, half a line may be there
        self._wait_for_all(deadline)
        self._release()
        return facts

    def _wait_for_all(self, deadline: float) -> None:
        """Wait until the last process has closed the pipe of the output: then none of them runs any more."""
        poll = select.poll()
        poll.register(self._fds[2], select.POLLIN)
        while (left := deadline - time.monotonic()) > 0 and poll.poll(left * 1e3):
            if not os.read(self._fds[2], CHUNK):
                return

    def _release(self) -> None:
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)
        self._status.close()
        self._room.close()


class _Output:
    """What was printed, of which `most` bytes are kept."""

    def __init__(self, most: int) -> None:
        self._most, self._kept, self.dropped = most, bytearray(), 0

    def take(self, fd: int, *, wait: bool = True) -> bool:
        """Read once; False at the end, or if there is nothing (only asked without `wait`, that is, without a poll before)."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return wait
        room = self._most - len(self._kept)
        self._kept += data[: max(room, 0)]
        self.dropped += max(len(data) - max(room, 0), 0)
        return bool(data)

    def text(self) -> str:
        return bytes(self._kept).decode(errors="replace")


class _Exchange:
    """One call in progress: what is still to be sent, and what has come."""

    def __init__(self, number: int, most: int, message: bytes) -> None:
        self._number, self._left = number, memoryview(message)
        self._largest = 16 * most + CHUNK
        """Largest answer: three texts of `most` characters, each of which JSON may write with 12 bytes at worst, and more."""
        self._came, self._sum = bytearray(), 0
        self.output = _Output(most)
        self.answer: list[str] | None = None

    def send(self, fd: int) -> bool:
        """Send what there is room for; whether there is more."""
        try:
            self._left = self._left[os.write(fd, self._left) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False  # its end of the answers says the same
        return bool(self._left)

    def receive(self, fd: int) -> str | None:
        """Read what it says, and keep the answer to this call; why that cannot be, if the exchange is over."""
        with suppress(BlockingIOError):
            data = os.read(fd, CHUNK)
            if not data:
                return ENDED
            self._came += data
            self._sum += len(data)
        while self.answer is None and len(self._came) >= 4:
            size = int.from_bytes(self._came[:4], "big")
            if size > self._largest or self._sum > 2 * self._largest:
                return "sent too much"
            if len(self._came) < 4 + size:
                return None
            try:
                message = plain.from_bytes(bytes(self._came[4 : 4 + size]))
            except ValueError:
                return "sent nonsense"
            del self._came[: 4 + size]
            if not _is_answer(message):
                return "sent nonsense"
            if message[0] == self._number:  # others are late answers to earlier calls: the code has forged one before
                self.answer = message[1:]
        return None


def _is_answer(message: object) -> bool:
    if not (isinstance(message, list) and len(message) == 4 and type(message[0]) is int):
        return False
    return message[1] in ANSWERS and all(isinstance(text, str) for text in message[1:])


def refuse(interpreter: Interpreter) -> None:
    """End an interpreter that could not be confined, and raise a `ConfigError`."""
    broken = interpreter.facts["broken"]
    interpreter.end()
    lines = "; ".join(f"{promise} ({reason})" for promise, reason in broken.items())
    fix = f"this machine cannot keep its promises: {lines}. Use another machine, or allow_weaker=True for code you trust"
    raise ConfigError("sandbox", sorted(broken), fix)
