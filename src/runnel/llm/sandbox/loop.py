"""The loop of a confined interpreter with memory: it reads a piece of code, runs it, and answers with what came of it.

The code runs in this very process. It can therefore change this loop, forge its answers, or end it; the parent
(`interpreter.py`) trusts nothing that comes from here. What is done here against careless code, such as keeping the system's
functions under names of our own, serves the model and is no protection.
"""

from __future__ import annotations

import _ast
import io
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from typing import Any

    from runnel.llm.sandbox import plain
else:
    import _signal

    import plain
AHEAD = ("traceback", "linecache")
"""Imported before the interpreters are forked; they take longer than most calls."""
ONLY_AST = 0x400
READ, WRITE, EXIT, ALARM, SETTIMER, SIGNAL = os.read, os.write, os._exit, _signal.SIGALRM, _signal.setitimer, _signal.signal
UNBLOCK, SETMASK = _signal.SIG_UNBLOCK, _signal.pthread_sigmask
FRAMES, SHORT = 8, 4000
"""Most frames of a traceback, and most characters."""


class Stopped(BaseException):
    """Raised in the code when its time is over, or when it has printed too much. Not an `Exception`, so that code which retries
    after any error ends too."""


class Printed(io.RawIOBase):
    """Standard output, of which a call may write `left` more bytes. The rest is dropped, and `flooded` is set."""

    def __init__(self) -> None:
        self.left, self.flooded = 0, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        kept, size = view[: max(self.left, 0)], len(view)
        self.left -= size
        while kept:
            kept = kept[WRITE(1, kept) :]
        if self.left < 0 and not self.flooded:
            self.flooded = True
            SETTIMER(_signal.ITIMER_REAL, 1e-6)  # the main thread is stopped, whichever thread has printed
        return size


class CallLoop:
    """Serves calls over two pipes. All calls share the names of one module."""

    def __init__(self, asked_fd: int, said_fd: int, *, most: int, hidden: list[str]) -> None:
        self._asked, self._said, self._most = asked_fd, said_fd, most
        self._hidden = sorted(hidden, key=len, reverse=True)
        module = type(sys)("__main__")
        sys.modules["__main__"] = module
        self._names = module.__dict__
        self._printed = Printed()
        self._stream = self._new_stream()
        self._armed, self._stopped = False, False
        self._lines: Any = __import__("linecache").cache  # where tracebacks look for lines of the code
        sys.argv, sys.stdin = ["session.py"], io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8")

    def serve(self) -> None:
        """Answer until the parent closes its end."""
        while True:
            size = int.from_bytes(self._read(4), "big")
            number, code, timeout_s, cpu_s = plain.from_bytes(self._read(size))
            answer = plain.to_bytes([number, *self.call(number, code, timeout_s, cpu_s)])
            left = memoryview(answer)
            while left:
                left = left[WRITE(self._said, left) :]

    def _read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            part = READ(self._asked, size - len(parts))
            if not part:
                EXIT(0)
            parts += part
        return parts

    def call(self, number: int, code: str, timeout_s: float, cpu_s: int) -> list[str]:
        """Run one piece of code; returns the status, the value of a last expression, and the error."""
        if cpu_s:  # a part of the session's time was used by an interpreter before this one
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        self._open_output()
        try:
            self._arm(timeout_s)
            try:
                found = self._run(code, f"<call {number}>")
                self._flush()
            finally:
                SETTIMER(_signal.ITIMER_REAL, 0)
                self._armed = False  # `_stop` raises only before this: never outside of the outer `try`
        except BaseException:  # it was stopped; or what describes its error was broken by the code
            found = ["failed", "", "an error that has no traceback"]
            self._flush()
        status = "output" if self._printed.flooded else "timeout" if self._stopped else found[0]
        return [status, *(found[1:] if status == found[0] else ("", ""))]

    def _open_output(self) -> None:
        """Both streams are one, so that what was printed stays in order; code may have closed or replaced them."""
        if not self._is_open():
            self._printed = Printed()
            self._stream = self._new_stream()
        self._printed.left, self._printed.flooded = self._most, False
        sys.stdout = sys.stderr = self._stream

    def _is_open(self) -> bool:
        try:
            return not (self._stream.closed or self._printed.closed)
        except ValueError:  # the code has detached it
            return False

    def _new_stream(self) -> io.TextIOWrapper[io.BufferedWriter[Printed]]:
        return io.TextIOWrapper(io.BufferedWriter(self._printed), encoding="utf-8", errors="replace")

    def _flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):  # the code has closed it
            return

    def _arm(self, timeout_s: float) -> None:
        SIGNAL(ALARM, self._stop)
        SETMASK(UNBLOCK, [ALARM])
        self._armed, self._stopped = True, False
        SETTIMER(_signal.ITIMER_REAL, timeout_s)

    def _stop(self, number: int, frame: object) -> None:
        if self._armed:
            self._armed, self._stopped = False, True  # once: what handles the first must not be stopped by a second
            raise Stopped

    def _run(self, code: str, name: str) -> list[str]:
        try:
            value = self._execute(code, name)
            cut = f"the value has {len(value)} characters; the first {self._most} are shown" if len(value) > self._most else ""
            return ["output" if cut else "ok", value[: self._most], cut]
        except SystemExit as stop:
            good = stop.code in (None, 0)
            return ["ok", "", ""] if good else ["failed", "", f"SystemExit: {stop.code}"[:SHORT]]
        except MemoryError:
            return ["memory", "", "MemoryError"]
        except Stopped:
            raise
        except BaseException as error:
            return ["failed", "", self._described(error)]

    def _execute(self, code: str, name: str) -> str:
        """Run the code; the `repr` of the value of its last statement, if that is an expression and its value not None."""
        self._lines[name] = (len(code), None, code.splitlines(keepends=True), name)
        tree: Any = compile(code, name, "exec", ONLY_AST, dont_inherit=True)
        expression = tree.body.pop().value if tree.body and type(tree.body[-1]) is _ast.Expr else None
        exec(compile(tree, name, "exec", dont_inherit=True), self._names)
        if expression is None:
            return ""
        value = eval(compile(_ast.Expression(expression), name, "eval", dont_inherit=True), self._names)
        return "" if value is None else repr(value)

    def _described(self, error: BaseException) -> str:
        """A short traceback: without the frames of this file, and without names of folders of the host."""
        import traceback

        place = error.__traceback__
        while place is not None and place.tb_frame.f_code.co_filename == __name__ + ".py":
            place = place.tb_next
        text = "".join(traceback.format_exception(type(error), error, place, limit=-FRAMES)).rstrip()
        for prefix in self._hidden:
            text = text.replace(prefix, "")
        return text if len(text) <= SHORT else f"{text[: SHORT // 4]}\n...\n{text[-SHORT // 4 * 3 :]}"
