"""Remote calls between two interpreters: one runs a model's code, the other runs the tests of that code.

Plain data is sent by value (`plain.py`). Functions and objects stay in their interpreter; the other side has a `Remote`, and
each use of it is a request. Both sides use the class `Link`. The side with the tests is `trusted`: it accepts only plain data
as results, and lets the code call only functions that a test has passed to it.
"""

from __future__ import annotations

import _operator
import _thread
import builtins
import io
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from runnel.llm.sandbox import plain
    from runnel.llm.sandbox.plain import Form, Value
    from runnel.llm.sandbox.remote import OPERATORS, Remote
else:
    import plain
    from remote import OPERATORS, Remote


def _equals_all(value: object) -> bool:
    """Whether an object claims to be equal to a new `object()`: then its comparisons mean nothing."""
    try:
        return bool(value == object())
    except Exception:  # a method of the code, which expects an object of its own class
        return False


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "iter": iter, "next": next, "str": str, "repr": repr, "hash": hash, "int": int, "float": float, "round": round, "abs": abs,
    "len": len, "isinstance": isinstance, "setattr": setattr, "delattr": delattr,
    "equals_all": _equals_all,
}  # fmt: skip


class LinkLost(BaseException):
    """The other side has ended, or sent something that is no valid message."""


class CodeExit(SystemExit):
    """The code asked to end the program from within a call."""


class Link:
    """One end of a connection over two pipes."""

    def __init__(self, read_fd: int, write_fd: int, *, trusted: bool) -> None:
        self._read_fd, self._write_fd, self.trusted = read_fd, write_fd, trusted
        self._objects: list[Value] = []
        self._handles: dict[int, int] = {}
        self._remotes: dict[int, Remote] = {}
        self._errors: dict[tuple[str, ...], type[BaseException]] = {}
        self._lock = _thread.RLock()
        self.named: set[int] = set()
        """Handles of the classes that the tests name."""
        self.lost = ""
        """Why the connection is over. A test may have caught the `LinkLost`, so the reason is kept here."""

    # -------------------------------------------------------------------------------------------------------- messages
    # as in core/framing.py, which cannot be imported here: this program has no access to the package's files, and starts in
    # milliseconds because it imports neither json nor socket
    def _lost_by(self, reason: str) -> LinkLost:
        self.lost = self.lost or reason
        return LinkLost(self.lost)

    def send(self, message: Form) -> None:
        if self.lost:
            raise LinkLost(self.lost)
        data = memoryview(plain.to_bytes(message))
        try:
            while data:
                data = data[os.write(self._write_fd, data) :]
        except OSError as error:
            raise self._lost_by("the code ended its process") from error

    def receive(self) -> Form:
        size = int.from_bytes(self._read(4), "big")
        if size > plain.LARGEST:
            raise self._lost_by("the code answered with too much data")
        try:
            return plain.from_bytes(self._read(size))
        except ValueError as error:
            raise self._lost_by("the code's process answered with nonsense") from error

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = os.read(self._read_fd, min(size - len(parts), 1 << 20))
            if not part:
                raise self._lost_by("the code ended its process")
            parts += part
        return bytes(parts)

    # ------------------------------------------------------------------------------------------------------- questions
    def ask(self, what: str, *args: Value) -> Value:
        """Send a request and return its result; requests of the other side that arrive meanwhile are served."""
        with self._lock:  # re-entrant, because serving a nested request may ask in turn
            return self._ask(what, args)

    def _ask(self, what: str, args: tuple[Value, ...]) -> Value:
        captured = self.trusted and sys.stdout is not sys.__stdout__
        self.send(["?", f"captured {what}" if captured else what, [self.encode(a) for a in args]])
        while True:
            answer = self.receive()
            if not isinstance(answer, list) or len(answer) != 3:
                raise self._lost_by("the code's process answered with nonsense")
            if answer[0] == "?":
                self.answer(answer)
            elif answer[0] == "=":
                return self._returned(answer, args)
            else:
                raise self._error(answer[1], answer[2])

    def _returned(self, answer: list[Form], args: tuple[Value, ...]) -> Value:
        """The result; argument containers that the other side changed are changed here too."""
        for at, form in answer[2] if len(args) == 3 else []:
            old = _place(args, at)
            new = self.decode(form)
            if type(old) is not type(new) or type(old) not in (list, dict, set, bytearray):
                raise self._lost_by("the code's process answered with nonsense")
            if isinstance(old, list | bytearray):
                old[:] = new
            else:
                old.clear()
                old.update(new)
        return self.decode(answer[1])

    def serve(self) -> None:
        """Serve requests until the other side ends."""
        try:
            while True:
                self.answer(self.receive())
        except LinkLost:
            return

    def answer(self, question: list[Form]) -> None:
        _, what, forms = question
        try:
            args = tuple(self.decode(f) for f in forms)
            if self.trusted:
                self._permit(what, forms, args[0])
            captured = what[:9] == "captured " and not self.trusted
            value = self._captured(what[9:], args) if captured else self._do(what, args)
            held = _containers(forms) if what.endswith("call") else []
            changes = [[at, new] for at, old in held if (new := self.encode(_place(args, at))) != old]
            reply = ["=", self.encode(value), changes]
        except LinkLost:
            raise
        except BaseException as error:
            reply = ["!", *self._described(error)]
        self.send(reply)

    def _captured(self, what: str, args: tuple[Value, ...]) -> Value:
        """Serve a request and send what it prints to the tests, which have redirected their output in order to check it."""
        before, sys.stdout = sys.stdout, io.StringIO()
        try:
            return self._do(what, args)
        finally:
            printed, sys.stdout = sys.stdout, before
            self.ask("print", printed.getvalue())

    def _do(self, what: str, args: tuple[Value, ...]) -> Value:
        if what == "names":
            return self._names(args[0])
        if what == "call":
            return args[0](*args[1], **args[2])
        if what == "get":
            return getattr(args[0], args[1])
        if what == "print":
            return sys.stdout.write(args[0])
        if what == "await":
            import asyncio

            return asyncio.run(args[0])
        if what in OPERATORS:
            return getattr(_operator, what)(*args)
        return FUNCTIONS[what](*args)

    def _permit(self, what: str, forms: list[Form], target: Value) -> None:
        """Raise unless the code may make this request: it may call functions that it was given, and use objects of the tests'
        classes. With any other call, the code could build objects of its choice in the tests' process."""
        kind = target if isinstance(target, type) else type(target)
        given = isinstance(forms[0], list) and forms[0][:1] == ["o"]
        public = what not in ("get", "setattr", "delattr") or (isinstance(forms[1], str) and forms[1][:1] != "_")
        iterated = what in ("iter", "next") and hasattr(kind, "__iter__")
        used = kind.__module__ in ("__main__", "_io") and public and (what == "get" or what in FUNCTIONS or what in OPERATORS)
        if what != "print" and not (given and (what == "call" or iterated or used)):
            raise PermissionError("tests can be called, not looked into")

    def _names(self, wanted: list[str]) -> dict[str, Value]:
        """The values of those wanted names that the code defines at its top level."""
        names = sys.modules["solution"].__dict__
        for value in (names.get(n) for n in wanted):
            if isinstance(value, type):
                self.named.add(self._export(value))
        return {n: names[n] for n in wanted if n in names}

    # ---------------------------------------------------------------------------------------------------------- values
    def encode(self, value: Value) -> Form:
        return plain.encode(value, self._refer)

    def decode(self, form: Form) -> Value:
        try:
            return plain.decode(form, self._resolve)
        except (ValueError, TypeError, IndexError, RecursionError) as error:
            raise self._lost_by("the code's process answered with nonsense") from error

    def _export(self, value: Value) -> int:
        handle = self._handles.setdefault(id(value), len(self._objects))
        if handle == len(self._objects):
            self._objects.append(value)
        return handle

    def _refer(self, value: Value) -> list[Form]:
        if type(value) is Remote:
            return ["o", value._remote_handle]
        if (origin := _origin(value)) is not None:
            return ["G", *origin]
        if self.trusted and type(value) is type(len) and value.__module__ == "builtins":
            return ["B", value.__name__]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["E", *_lineage(value)]
        kind = self._handles.get(id(type(value)), -1)
        if kind not in self.named and (form := plain.as_base(value, self._refer)) is not None:
            return list(form) if isinstance(form, list) else ["p", form]
        if hasattr(type(value), "__await__") and type(value).__name__ == "coroutine":
            return ["a", self._export(value)]
        return ["x", self._export(value), kind if kind in self.named else -1]

    def _resolve(self, form: list[Form]) -> Value:
        tag, rest = form[0], form[1:]
        if tag == "o":
            return self._objects[rest[0]] if type(rest[0]) is int and 0 <= rest[0] < len(self._objects) else _bad()
        if tag == "p":
            return rest[0] if not isinstance(rest[0], list | dict) else _bad()
        if tag == "x":
            return self._remotes.setdefault(rest[0], Remote(self, rest[0], rest[1]))
        if tag == "a":
            return _awaited(self, Remote(self, rest[0], -1))
        if tag == "E":
            return self._error_class(tuple(rest))
        if tag == "M":
            return _module(rest[0])
        if tag == "G":
            return getattr(_module(rest[0]), rest[1]) if rest[0] in SHARED and rest[1][:1] != "_" else _bad()
        return getattr(builtins, rest[0]) if tag == "B" and not self.trusted else _bad()

    # ---------------------------------------------------------------------------------------------------------- errors
    def _described(self, error: BaseException) -> list[Form]:
        """An error as forms: the names of its classes up to a builtin one with its arguments, and its plain attributes."""
        try:
            args, held = self.encode(error.args), self.encode({k: v for k, v in vars(error).items() if k.isidentifier()})
        except Exception:  # a class of the code may do anything
            args, held = ["t", []], ["d", []]
        return [[_lineage(type(error)), args], held]

    def _error(self, described: Form, held: Form) -> BaseException:
        try:
            lineage, args = described
            error = self._error_class(tuple(lineage))(*self.decode(args))
            for name, value in self.decode(held).items():
                if name[:1] != "_":
                    setattr(error, name, value)
        except (TypeError, ValueError, AttributeError, IndexError) as wrong:
            raise self._lost_by("the code's process answered with nonsense") from wrong
        return error

    def _error_class(self, lineage: tuple[Form, ...]) -> type[BaseException]:
        """The builtin class at the end of a lineage, with a new subclass for each name before it."""
        *names, base = map(str, lineage)
        known = getattr(builtins, base, None)
        if not (isinstance(known, type) and issubclass(known, BaseException)):
            raise ValueError(base)
        if not issubclass(known, Exception):
            return CodeExit if self.trusted else known
        for i in reversed(range(len(names))):
            known = self._errors.setdefault(tuple(map(str, lineage[i:])), type(names[i], (known,), {}))
        return known


# ------------------------------------------------------------------------------------------------------------------ pieces
SHARED = tuple(m for m in plain.MODULES if m not in ("numpy", "pandas"))
"""Modules whose names tests may use if the code has imported them: the tests get them from their own library."""


def _origin(value: Value) -> tuple[str, str] | None:
    """Module and name of a function or class of the standard library, so that the other side uses its own; else None."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if module not in SHARED or not isinstance(name, str) or not callable(value):
        return None
    return (str(module), name) if getattr(sys.modules.get(str(module)), name, None) is value else None


def _module(name: Form) -> Value:
    if name not in plain.MODULES:
        return _bad()
    __import__(name)
    return sys.modules[name]


def _bad() -> Value:
    raise ValueError("no such value")


def _lineage(kind: type) -> list[str]:
    """The names of an error's classes, up to the first builtin one."""
    kinds = kind.__mro__
    end = next((i for i, k in enumerate(kinds) if k.__module__ == "builtins"), len(kinds) - 1)
    return [k.__qualname__ for k in kinds[: end + 1]]


async def _awaited(link: Link, remote: Remote) -> Value:
    return link.ask("await", remote)


def _containers(forms: list[Form]) -> list[tuple[Form, Form]]:
    """Place and form of each argument of a call that is a mutable container."""
    found: list[tuple[Form, Form]] = [(i, f) for i, f in enumerate(forms[1][1]) if _mutable(f)]
    return found + [(k, f) for k, f in forms[2][1] if _mutable(f)]


def _mutable(form: Form) -> bool:
    return isinstance(form, list) and form[0] in ("l", "d", "s", "y")


def _place(args: tuple[Value, ...], at: Form) -> Value:
    return args[1][at] if isinstance(at, int) else args[2][at]
