"""The proxy of an object of the other interpreter: each use of it is a request over the `Link`.

In the tests' process (a trusted link), an object of the code is never equal to plain data, cannot be ordered with it or added
to it, and has no methods of plain types. Otherwise the code could decide the comparisons of a test. Objects of classes that the
tests name can use their own operators with each other.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from runnel.llm.sandbox.link import Link
    from runnel.llm.sandbox.plain import Value

PRETENDERS = frozenset(n for kind in (str, list, dict, set, tuple, int, float, bytes) for n in dir(kind) if n[0] != "_")
"""Methods of plain types. An object that is not plain but has them could return whatever a test expects."""
ATTRIBUTES = ("__name__", "__qualname__", "__module__", "__annotations__", "__dict__", "__wrapped__", "__enter__", "__exit__")
"""Special attributes that tests can read. Others are hidden, because libraries look for them and trust them."""
SCALING = ("mul", "truediv", "floordiv", "mod", "pow", "matmul")
BINARY = ("add", "sub", *SCALING, "and_", "or_", "xor", "lshift", "rshift")
ORDER = ("lt", "le", "gt", "ge")
OPERATORS = frozenset((*BINARY, *ORDER, "eq", "ne", "neg", "pos", "invert", "getitem", "setitem", "delitem", "truth"))


class Remote:
    """The proxy of an object of the other side; each use of it is a request."""

    __slots__ = ("_remote_handle", "_remote_kind", "_remote_link")

    def __init__(self, link: Link, handle: int, kind: int) -> None:
        object.__setattr__(self, "_remote_link", link)
        object.__setattr__(self, "_remote_handle", handle)
        object.__setattr__(self, "_remote_kind", kind)

    def _remote_free(self) -> bool:
        """Whether the object's own operators are used: in the tests' process, only if the tests name its class."""
        link = self._remote_link
        return not link.trusted or self._remote_kind in link.named

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        return self._remote_link.ask("call", self, list(args), kwargs)

    def __getattr__(self, name: str) -> Value:
        special = self._remote_link.trusted and name[:2] == "__" and name not in ATTRIBUTES
        if special or (name in PRETENDERS and not self._remote_free()):
            raise AttributeError(f"the code's object is no plain data; it has no {name} here")
        return self._remote_link.ask("get", self, name)

    def __setattr__(self, name: str, value: Value) -> None:
        self._remote_link.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._remote_link.ask("delattr", self, name)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        link = self._remote_link
        if link.trusted and not (type(other) is Remote and self._remote_free() and other._remote_free()):
            return False
        return link.ask("eq", self, other) is True and not (link.trusted and link.ask("equals_all", self) is True)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return int(self._remote_link.ask("hash", self)) if self._remote_free() else object.__hash__(self)

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is Remote and self._remote_link.ask("isinstance", value, self) is True

    def __enter__(self) -> Value:
        return self._remote_link.ask("get", self, "__enter__")()

    def __exit__(self, *error: object) -> bool:
        return bool(self._remote_link.ask("get", self, "__exit__")(None, None, None))


def _operate(name: str, left: Value, right: Value, link: Link) -> Value:
    """Apply an operator to an object of the code, but none that would compare it with plain data."""
    both = type(left) is Remote and type(right) is Remote
    free = all(v._remote_free() for v in (left, right) if type(v) is Remote)
    if link.trusted and not (free and (both or name in SCALING)):
        raise TypeError(f"an object of the code and plain data: no {name} between them")
    value = link.ask(name, left, right)
    if link.trusted and not both and type(value) is not Remote:
        raise TypeError(f"an object of the code and plain data: {name} gave plain data")
    return value


def _add_operators() -> None:
    def binary(name: str) -> None:
        bare = name.rstrip("_")
        setattr(Remote, f"__{bare}__", lambda self, other: _operate(name, self, other, self._remote_link))
        setattr(Remote, f"__r{bare}__", lambda self, other: _operate(name, other, self, self._remote_link))

    def simple(dunder: str, what: str) -> None:
        setattr(Remote, dunder, lambda self, *args: self._remote_link.ask(what, self, *args))

    for name in BINARY:
        binary(name)
    for name in ORDER:
        setattr(Remote, f"__{name}__", lambda self, other, n=name: _operate(n, self, other, self._remote_link))
    for what in ("iter", "next", "str", "repr", "int", "float", "round", "abs", "len", "neg", "pos", "invert", "getitem"):
        simple(f"__{what}__", what)
    simple("__setitem__", "setitem")
    simple("__delitem__", "delitem")
    simple("__bool__", "truth")


_add_operators()
