"""Arithmetic for numpy arrays and for tensors, so that an environment is written once and runs on both.

At 8 environments a numpy call costs a third of a torch call. On a device every operation is a kernel, so a sum of products is
one call there. An `Array` is a numpy array or a tensor; one expression never mixes them.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

Array = Any
"""A numpy array or a tensor."""


def module_of(x: Array) -> ModuleType:
    """`torch` for a tensor, else `numpy`. Both have sin, cos, clip, where, remainder, empty_like."""
    return torch if isinstance(x, Tensor) else np


def plus(a: Array, b: Array, scale: float) -> Array:
    """`a + scale * b`, of one shape; one kernel on a device."""
    if isinstance(a, Tensor):
        return torch.add(a, b, alpha=scale)
    # the product is new memory, so the sum can go into it: one array less to allocate
    x = np.multiply(b, _number(scale))
    return np.add(x, a, x)


def plus_product(a: Array, b: Array, c: Array, scale: float) -> Array:
    """`a + scale * b * c`, where `a` may be a single number; one kernel on a device."""
    if isinstance(b, Tensor):
        return torch.addcmul(a, b, c, value=scale)
    x = np.multiply(b, c)
    if scale == -1.0:  # one numpy call less
        return np.subtract(a, x, x)
    np.multiply(x, _number(scale), x)
    return np.add(x, a, x)


def floats(x: Array) -> Array:
    """`x` in float32."""
    return x.float() if isinstance(x, Tensor) else x.astype(np.float32)


def blanked(x: Array, rows: Array) -> Array:
    """`x` `[B, n]` with zeros in `rows` `[B]`."""
    return x.masked_fill(rows[:, None], 0.0) if isinstance(x, Tensor) else np.where(rows[:, None], np.float32(0.0), x)


def beyond(x: Array, limit: float) -> Array:
    """Where `|x| > limit`, for `limit` above 0."""
    return x.abs() > limit if isinstance(x, Tensor) else np.greater(np.abs(x), _number(limit))


_NUMBERS: dict[float, Array] = {}


def _number(x: float) -> Array:
    """`x` as an array without dimensions: numpy needs half as long for it as for a Python number."""
    if x not in _NUMBERS:
        _NUMBERS[x] = np.array(x, np.float32)
    return _NUMBERS[x]


def columns(*xs: Array) -> Array:
    """Stack arrays `[B]` as columns of `[B, n]`. In numpy each column is contiguous, so that the next step reads it fast."""
    if isinstance(xs[0], Tensor):
        return torch.stack(xs, dim=1)
    out = np.empty((len(xs), len(xs[0])), np.float32)
    for row, x in zip(out, xs, strict=True):
        row[:] = x
    return out.T


class Constants:
    """Named constant arrays, copied once to each device where they are used."""

    def __init__(self, **arrays: ArrayLike) -> None:
        self._numpy = {k: np.asarray(v) for k, v in arrays.items()}
        self._on: dict[torch.device, dict[str, Array]] = {}

    def beside(self, x: Array) -> dict[str, Array]:
        """The constants as numpy arrays or as tensors on a device, whichever `x` is."""
        if not isinstance(x, Tensor):
            return self._numpy
        if x.device not in self._on:
            self._on[x.device] = {k: torch.from_numpy(v.copy()).to(x.device) for k, v in self._numpy.items()}
        return self._on[x.device]


class Filled:
    """A constant vector (a constant reward), made once for each length and device."""

    def __init__(self, value: float) -> None:
        self._value = value
        self._made: dict[tuple[torch.device | None, int], Array] = {}

    def like(self, x: Array) -> Array:
        """The constant for `x` `[B]`. It is shared: nobody may write to it. `[B]`"""
        key = (x.device if isinstance(x, Tensor) else None, len(x))
        if key not in self._made:
            self._made[key] = module_of(x).full_like(x, self._value)
        return self._made[key]
