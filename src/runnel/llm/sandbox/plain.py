"""Values as plain data, between the interpreter that runs a model's code and the one that runs the tests.

Numbers, texts and containers are sent by value, as JSON with a tag for each type that JSON lacks; everything else is sent as a
reference. A reader builds only objects of exactly the known types: whatever the other side sends, no object that claims to be
equal to everything can result. Like `child.py`, the module imports little, because imports are most of the start; so it reads
and writes JSON with the C functions only.
"""

from __future__ import annotations

import builtins
import sys
from _json import encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Form = Any  # what is sent: None, a truth value, a number, a text, or a list of forms
    Value = Any  # an object of one of the programs
    Refer = Callable[[Value], list[Form]]  # makes the form of a reference
    Read = Callable[[Form], Value]

SMALL = 1 << 63
AS_THEY_ARE = {int, str, bool, float, type(None)}
"""Types that JSON has too."""
LARGEST = 1 << 26
"""Most bytes of a message."""
VALUES = {("collections", "deque"), ("fractions", "Fraction"), ("decimal", "Decimal"), ("collections", "Counter")}
"""Further types of the standard library that are sent by value; the reader builds each again from its members."""
MODULES = (
    "collections", "math", "cmath", "fractions", "decimal", "datetime", "itertools", "functools", "statistics", "string",
    "typing", "operator", "_operator", "re", "copy", "bisect", "heapq", "numpy", "pandas",
)  # fmt: skip
"""Modules that are sent by name: each side uses its own."""
DATES = ("date", "datetime", "time", "timedelta")


class _Form:
    """The settings that the C scanner of JSON reads."""

    strict, object_hook, object_pairs_hook, memo = True, None, None, None
    parse_float, parse_int = float, int
    parse_constant = staticmethod({"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.__getitem__)


_scan: Any = make_scanner(_Form())  # type: ignore[arg-type]
_write: Any = make_encoder(None, None, encode_basestring_ascii, None, ": ", ", ", False, False, True)  # type: ignore[arg-type]


def to_bytes(message: Form) -> bytes:
    """A message of lists, texts and numbers as bytes: its length, then its JSON."""
    data = "".join(_write(message, 0)).encode()
    return len(data).to_bytes(4, "big") + data


def from_bytes(data: bytes) -> Form:
    """The message of `to_bytes` (without the length); a `ValueError` if it is none."""
    try:
        text = data.decode()
        message, end = _scan(text, 0)
    except (StopIteration, RecursionError, UnicodeDecodeError) as error:
        raise ValueError("not a message") from error
    if end != len(text):
        raise ValueError("not a message")
    return message


# ---------------------------------------------------------------------------------------------------------------- writing
def encode(value: Value, refer: Refer) -> Form:
    """A value as lists, texts and numbers; `refer` makes references to values that are not plain."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        return value if -SMALL < value < SMALL else ["h", hex(value)]
    if kind is list or kind is tuple or kind is set or kind is frozenset:
        return [kind.__name__[0] if kind is not frozenset else "z", _items(value, refer)]
    if kind is dict:
        return ["d", [[encode(k, refer), encode(v, refer)] for k, v in value.items()]]
    writer = _WRITERS.get(kind.__name__)
    if writer is not None:
        return writer(value, lambda v: encode(v, refer))
    return _other(value, kind, refer)


def _items(values: Value, refer: Refer) -> list[Form]:
    """All values, encoded. Containers of only plain numbers or texts are copied as a whole, which is much faster."""
    kinds = set(map(type, values))
    small = int not in kinds or (kinds == {int} and min(values) > -SMALL and max(values) < SMALL)
    return list(values) if kinds <= AS_THEY_ARE and small else [encode(v, refer) for v in values]


def _values(forms: Form, d: Read) -> list[Value]:
    if type(forms) is not list:
        raise ValueError("not a value")
    return list(forms) if set(map(type, forms)) <= AS_THEY_ARE else [d(v) for v in forms]


_WRITERS: dict[str, Callable[[Value, Callable[[Value], Form]], Form]] = {
    "bytes": lambda v, e: ["b", v.hex()],
    "bytearray": lambda v, e: ["y", v.hex()],
    "complex": lambda v, e: ["c", v.real, v.imag],
    "range": lambda v, e: ["r", e(v.start), e(v.stop), e(v.step)],
    "dict_keys": lambda v, e: ["k", [e(i) for i in v]],
    "dict_values": lambda v, e: ["v", [e(i) for i in v]],
    "dict_items": lambda v, e: ["i", [[e(k), e(w)] for k, w in v]],
    "slice": lambda v, e: ["S", e(v.start), e(v.stop), e(v.step)],
    "ellipsis": lambda v, e: ["e"],
}


def _other(value: Value, kind: type, refer: Refer) -> Form:
    """The form of a type, a module, or a value of a library type; a reference for everything else."""
    if isinstance(value, type) and value.__module__ == "builtins":
        return ["T", value.__name__]
    if kind is type(sys) and value.__name__ in MODULES:
        return ["M", value.__name__]
    name = (kind.__module__, kind.__name__)
    if name in VALUES:
        return ["V", kind.__name__, *_members(value, kind.__name__, refer)]
    if kind.__module__ == "datetime" and kind.__name__ in DATES and getattr(value, "tzinfo", None) is None:
        return [
            "D",
            kind.__name__,
            [int(f) for f in value.__reduce__()[1]] if kind.__name__ == "timedelta" else value.isoformat(),
        ]
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        plain = encode(value.tolist(), refer)
        return ["N", plain, str(value.dtype)] if kind.__name__ == "ndarray" else plain
    return refer(value)


def _members(value: Value, name: str, refer: Refer) -> list[Form]:
    if name == "deque":
        return [[encode(v, refer) for v in value], value.maxlen]
    if name == "Counter":
        return [[[encode(k, refer), encode(v, refer)] for k, v in value.items()]]
    if name == "Fraction":
        return [encode(value.numerator, refer), encode(value.denominator, refer)]
    return [str(value)]


def as_base(value: Value, refer: Refer) -> Form:
    """An instance of a subclass of a plain type as that type (a defaultdict as a dict, an IntEnum as an int, a named tuple with
    its fields); None if it is no such instance."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return ["n", type(value).__name__, list(value._fields), [encode(v, refer) for v in tuple(value)]]
    if isinstance(value, dict):
        return encode(dict(value.items()), refer)
    kinds: tuple[type, ...] = (int, str, float, list, tuple, set, frozenset, bytes)
    base = next((k for k in kinds if isinstance(value, k)), None)
    return None if base is None else encode(base(value), refer)


# ---------------------------------------------------------------------------------------------------------------- reading
def decode(form: Form, resolve: Callable[[list[Form]], Value]) -> Value:
    """The inverse of `encode`; `resolve` returns the object of a reference. Anything invalid is a `ValueError`."""
    if not isinstance(form, list):
        if isinstance(form, dict):
            raise ValueError("not a value")
        return form
    reader = _READERS.get(form[0]) if form and isinstance(form[0], str) else None
    if reader is None:
        return resolve(form)
    try:
        return reader(form, lambda f: decode(f, resolve))
    except (TypeError, IndexError, KeyError, AttributeError, ImportError, ArithmeticError) as error:
        raise ValueError("not a value") from error


def _library(form: list[Form], d: Read) -> Value:
    import collections

    if form[1] == "deque":
        return collections.deque([d(v) for v in form[2]], form[3])
    if form[1] == "Counter":
        return collections.Counter({d(k): d(v) for k, v in form[2]})
    if form[1] == "Fraction":
        from fractions import Fraction

        return Fraction(d(form[2]), d(form[3]))
    if form[1] != "Decimal":
        raise ValueError("not a value")
    from decimal import Decimal

    return Decimal(str(form[2]))


def _date(form: list[Form], d: Read) -> Value:
    import datetime

    if form[1] not in DATES:
        raise ValueError("not a date")
    kind = getattr(datetime, form[1])
    return kind(*form[2]) if form[1] == "timedelta" else kind.fromisoformat(form[2])


def _named(form: list[Form], d: Read) -> Value:
    from collections import namedtuple

    return namedtuple(form[1], form[2])(*[d(v) for v in form[3]])


def _array(form: list[Form], d: Read) -> Value:
    import numpy

    return numpy.array(d(form[1]), dtype=form[2])


def _builtin(form: list[Form], d: Read) -> Value:
    value = vars(builtins)[form[1]]
    if not isinstance(value, type):
        raise ValueError("not a type")  # never return a function that the other side has chosen
    return value


_READERS: dict[str, Callable[[list[Form], Read], Value]] = {
    "h": lambda f, d: int(f[1], 16),
    "l": lambda f, d: _values(f[1], d),
    "t": lambda f, d: tuple(_values(f[1], d)),
    "s": lambda f, d: set(_values(f[1], d)),
    "z": lambda f, d: frozenset(_values(f[1], d)),
    "d": lambda f, d: {d(k): d(v) for k, v in f[1]},
    "b": lambda f, d: bytes.fromhex(f[1]),
    "y": lambda f, d: bytearray.fromhex(f[1]),
    "c": lambda f, d: complex(f[1], f[2]),
    "r": lambda f, d: range(d(f[1]), d(f[2]), d(f[3])),
    "k": lambda f, d: dict.fromkeys([d(v) for v in f[1]]).keys(),
    "v": lambda f, d: dict(enumerate([d(v) for v in f[1]])).values(),
    "i": lambda f, d: {d(k): d(v) for k, v in f[1]}.items(),
    "S": lambda f, d: slice(d(f[1]), d(f[2]), d(f[3])),
    "e": lambda f, d: ...,
    "n": _named,
    "N": _array,
    "T": _builtin,
    "V": _library,
    "D": _date,
}
