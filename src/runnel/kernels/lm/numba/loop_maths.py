# mypy: ignore-errors
"""What compiled loops (`loops.py`) are written in: their words, and functions that compile to vector instructions."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

_FASTMATH = {"contract", "nsz", "arcp", "reassoc"}


def jit(function, fastmath=_FASTMATH):
    """Compile a function, whose sums may change their order to become vector instructions."""
    return njit(function, cache=True, error_model="numpy", fastmath=fastmath)


def jit_exact(function):
    """Compile a function that must not change the order of its sums."""
    return jit(function, fastmath={"contract"})


def compile_loop(body):
    """`body(words)` as machine code that may run on any thread."""
    return cfunc(types.void(types.CPointer(types.int64)), cache=True, error_model="numpy", fastmath=_FASTMATH)(body)


def _counter(index):
    @intrinsic
    def next_of(context, words):
        def build(target, builder, signature, args):
            place = builder.gep(args[0], [ir.Constant(ir.IntType(64), index)])
            return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "monotonic")

        return types.int64(words), build

    return next_of


_take, enter = _counter(0), _counter(2)
"""The number of the next piece; the number of this thread, for memory of its own."""


@njit(error_model="numpy")  # not cached: Numba cannot call a generator that it has loaded from its cache
def pieces(words):
    """The pieces of work for this thread, until none is left."""
    while True:
        piece = _take(words)
        if piece >= words[1]:
            return
        yield piece


def _pointer(kind):
    @intrinsic
    def at(context, word):
        def build(target, builder, signature, args):
            return builder.inttoptr(args[0], target.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.int64), build

    return at


floats, doubles, integers = _pointer(types.float32), _pointer(types.float64), _pointer(types.int64)


# --------------------------------------------------------------------------------------------------------------- lanes
LANES = 16
"""Numbers of a vector: one register of AVX-512, and what other processors make of it."""


class _Lanes(types.Type):
    def __init__(self):
        super().__init__(name=f"lanes{LANES}")


_lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.VectorType(ir.FloatType(), LANES))


def _spread(builder, x):
    """A vector of one number, many times."""
    kind = ir.VectorType(ir.FloatType(), LANES)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), x, ir.Constant(ir.IntType(32), 0))
    where = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), where)


def _fused(builder, x, y, total):
    """`x * y + total`, rounded once where the processor can."""
    return builder.fadd(builder.fmul(x, y, flags=("contract",)), total, flags=("contract",))


def _place(builder, pointer, at):
    kind = ir.VectorType(ir.FloatType(), LANES).as_pointer()
    return builder.bitcast(builder.gep(pointer, [at]), kind)


@intrinsic
def fill(context, x):
    """A vector of `x`."""
    return _lanes(types.float32), lambda target, builder, signature, args: _spread(builder, args[0])


@intrinsic
def load(context, pointer, at):
    """The vector from `pointer[at]` on."""

    def build(target, builder, signature, args):
        return builder.load(_place(builder, args[0], args[1]), align=4)

    return _lanes(pointer, types.int64), build


@intrinsic
def store(context, pointer, at, lanes):
    """Put a vector at `pointer[at]`."""

    def build(target, builder, signature, args):
        builder.store(args[2], _place(builder, args[0], args[1]), align=4)
        return target.get_dummy_value()

    return types.void(pointer, types.int64, lanes), build


@intrinsic
def add(context, total, x, lanes):
    """`total + x * lanes`, where `x` is one number."""

    def build(target, builder, signature, args):
        return _fused(builder, _spread(builder, args[1]), args[2], args[0])

    return _lanes(total, types.float32, lanes), build


@intrinsic
def fused(context, x, y, total):
    """`x * y + total` of vectors."""
    return _lanes(x, y, total), lambda target, builder, signature, args: _fused(builder, *args)


@intrinsic
def over(context, x, y):
    """`x / y` of vectors."""
    return _lanes(x, y), lambda target, builder, signature, args: builder.fdiv(*args)


@intrinsic
def larger(context, x, y):
    """The larger numbers of two vectors."""

    def build(target, builder, signature, args):
        return builder.select(builder.fcmp_ordered(">", args[0], args[1]), args[0], args[1])

    return _lanes(x, y), build


def _over_lanes(name):
    @intrinsic
    def reduced(context, lanes):
        def build(target, builder, signature, args):
            kind, number = args[0].type, ir.FloatType()
            first = [number] if name == "fadd" else []
            function = ir.FunctionType(number, [*first, kind])
            found = cgutils.get_or_insert_function(builder.module, function, f"llvm.vector.reduce.{name}.v{LANES}f32")
            start = [ir.Constant(number, -0.0)] if name == "fadd" else []
            return builder.call(found, [*start, args[0]], fastmath=("reassoc",))

        return types.float32(lanes), build

    return reduced


total, largest = _over_lanes("fadd"), _over_lanes("fmax")
"""The sum of a vector's numbers, and the largest of them."""


# ------------------------------------------------------------------------------------------------------------- numbers
@intrinsic
def number(context, word):
    """A float64 from its bits."""

    def build(target, builder, signature, args):
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), build


# --------------------------------------------------------------------------------------------------------- exponentials
_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)

_ROUND = 1.5 * 2.0**23
"""Added to a number, leaves the nearest whole one in the lowest bits."""


def _exp(builder, x):
    """e^x of a number or a vector (the polynomial of Cephes): within 2 units in the last place; 0 below -87.3."""
    many = isinstance(x.type, ir.VectorType)
    whole = ir.VectorType(ir.IntType(32), LANES) if many else ir.IntType(32)

    def const(value, kind=x.type):
        return ir.Constant(kind, [value] * LANES if many else value)

    lowest = const(float(np.float32(-87.3)))
    y = builder.select(builder.fcmp_ordered("<", x, lowest), lowest, x)
    highest = const(88.0)
    y = builder.select(builder.fcmp_ordered(">", y, highest), highest, y)
    rounded = builder.fadd(builder.fmul(y, const(float(np.float32(1.44269504)))), const(_ROUND))
    n = builder.fsub(rounded, const(_ROUND))
    r = _fused(builder, n, const(-0.693359375), y)
    r = _fused(builder, n, const(float(np.float32(2.12194440e-4))), r)
    p = const(float(np.float32(_POLYNOMIAL[0])))
    for coefficient in _POLYNOMIAL[1:]:
        p = _fused(builder, p, r, const(float(np.float32(coefficient))))
    p = builder.fadd(_fused(builder, p, builder.fmul(r, r), r), const(1.0))
    bits = builder.shl(builder.add(builder.bitcast(rounded, whole), const(127, whole)), const(23, whole))
    found = builder.fmul(p, builder.bitcast(bits, x.type))
    return builder.select(builder.fcmp_ordered("<", x, lowest), const(0.0), found)


@intrinsic
def _exp_of(context, x):
    return x(x), lambda target, builder, signature, args: _exp(builder, args[0])


@jit_exact
def exp(x):
    """e^x of a float32 number or a vector, within 2 units in the last place; 0 below -87.3, e^88 above 88, NaN for NaN."""
    return _exp_of(x)
