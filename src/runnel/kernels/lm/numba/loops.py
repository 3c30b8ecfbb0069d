"""Compiled loops over rows on the CPU, on torch's own threads.

A loop is a plain function of one argument, compiled by Numba: it takes pieces of its work off a counter until none is left.
Several threads may run it at once. They are those of torch's OpenMP, since a second pool would fight with the first, whose
threads wait for work by spinning. Which thread takes which piece changes nothing in the result.

The first use on a machine compiles for about a second a loop (15 seconds for all that a GRPO run uses); Numba keeps the result
beside the source (or in NUMBA_CACHE_DIR).
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Words = ctypes.Array[ctypes.c_int64]
PIECE = 65536
"""Elements of a piece of rows."""


class Loop:
    """`body(words)`, compiled at its first call.

    The words are: the next piece, the number of pieces, the next thread, then the arguments: addresses of tensors, integers,
    and the bits of float64 numbers (`loop_maths.py` reads them).
    """

    def __init__(self, body: Callable[[object], None]) -> None:
        self._body = body
        self._address = 0
        self._call: Callable[[Words], None] | None = None

    def __call__(self, pieces: int, *given: Tensor | int | float) -> None:
        """Work on all pieces, on several threads if there are several."""
        call = self._call or self._compile()
        words = (ctypes.c_int64 * (3 + len(given)))(0, pieces, 0, *[x if type(x) is int else _word(x) for x in given])
        threads = torch.get_num_threads() if pieces > 1 else 1
        if threads > 1 and (team := _team()) is not None:
            team(self._address, words, threads, 0)
        else:
            call(words)

    def by_rows(self, rows: int, size: int, *given: Tensor | int | float) -> None:
        """Work on `rows` rows of `size` elements each, in pieces of so many rows that the cost of scheduling one is small. The
        loop gets the number of rows and the number of rows of a piece, then what is `given`."""
        of_piece = max(1, min(rows, -(-PIECE // max(size, 1))))
        self(-(-rows // of_piece), rows, of_piece, *given)

    def _compile(self) -> Callable[[Words], None]:
        from runnel.kernels.lm.numba.loop_maths import compile_loop

        compiled = compile_loop(self._body)  # type: ignore[no-untyped-call]
        self._address = compiled.address
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compiled.address)
        return self._call


@cache
def has_numba() -> bool:
    """Whether loops can be compiled (`pip install 'runnel[compiled]'`)."""
    return importlib.util.find_spec("numba") is not None


_plain: list[bool] = []


@contextmanager
def without_loops() -> Iterator[None]:
    """Use torch instead of loops inside this block: for little work, compiling would take longer."""
    _plain.append(True)
    try:
        yield
    finally:
        _plain.pop()


def loops(*tensors: Tensor) -> bool:
    """Whether compiled loops serve these tensors: float32 on the CPU, with Numba."""
    return not _plain and all(x.dtype == torch.float32 and x.is_cpu for x in tensors) and has_numba()


def _word(x: Tensor | float) -> int:
    return int(struct.unpack("q", struct.pack("d", x))[0]) if isinstance(x, float) else int(x.data_ptr())


@cache
def _team() -> Any:
    """`GOMP_parallel` of the OpenMP that torch itself runs on, or None where it runs on something else."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not library.exists():
        return None
    team = getattr(ctypes.CDLL(str(library)), "GOMP_parallel", None)
    if team is not None:
        team.argtypes, team.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint), None
    return team
