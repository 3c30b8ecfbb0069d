"""Arithmetic that reads the same on numpy arrays and on tensors, for environments that are written once and run on both.

At 8 environments a numpy call costs a third of a torch call; on a device every operation is a kernel, so sums of products
are one call there. An `Array` is either; one expression never mixes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any
"""A numpy array or a tensor."""


def module_of(x: Array) -> Any:
    """`torch` for a tensor, else `numpy`: both know sin, cos, clip, where, remainder, empty_like."""
    return torch if isinstance(x, Tensor) else np


def plus(a: Array, b: Array, scale: float, *, out: Array | None = None) -> Array:
    """`a + scale * b`, of one shape; one kernel on a device."""
    if isinstance(a, Tensor):
        return torch.add(a, b, alpha=scale, out=out)
    x = np.multiply(b, _number(scale), out)
    return np.add(x, a, x)


def plus_product(a: Array, b: Array, c: Array, scale: float) -> Array:
    """`a + scale * b * c`, where `a` may have no dimensions; one kernel on a device."""
    if isinstance(b, Tensor):
        return torch.addcmul(a, b, c, value=scale)
    x = np.multiply(b, c)
    if scale == -1.0:
        return np.subtract(a, x, x)
    np.multiply(x, _number(scale), x)
    return np.add(x, a, x)


def beyond(x: Array, limit: float) -> Array:
    """Where `|x| > limit`, for `limit` above 0."""
    return x.abs() > limit if isinstance(x, Tensor) else np.greater(np.abs(x), _number(limit))


_NUMBERS: dict[float, Array] = {}


def _number(x: float) -> Array:
    """`x` as an array without dimensions: numpy takes that in half the time of a Python number."""
    if x not in _NUMBERS:
        _NUMBERS[x] = np.array(x, np.float32)
    return _NUMBERS[x]


def columns(*xs: Array) -> Array:
    """`[B]` arrays side by side, `[B, n]`. In numpy each column lies in one piece, so the next step reads it fast."""
    if isinstance(xs[0], Tensor):
        return torch.stack(xs, dim=1)
    out = np.empty((len(xs), len(xs[0])), np.float32)
    for row, x in zip(out, xs, strict=True):
        row[:] = x
    return out.T


class Constants:
    """Named constant arrays, copied once to every device they are asked for."""

    def __init__(self, **arrays: Any) -> None:
        self._host = {k: np.asarray(v) for k, v in arrays.items()}
        self._on: dict[torch.device, dict[str, Array]] = {}

    def beside(self, x: Array) -> dict[str, Array]:
        """The constants where `x` lives, in its kind."""
        if not isinstance(x, Tensor):
            return self._host
        if x.device not in self._on:
            self._on[x.device] = {k: torch.from_numpy(v.copy()).to(x.device) for k, v in self._host.items()}
        return self._on[x.device]


class Filled:
    """A vector of one value, made once for each length and device: a constant reward."""

    def __init__(self, value: float) -> None:
        self._value = value
        self._made: dict[tuple[Any, int], Array] = {}

    def like(self, x: Array) -> Array:
        """`[B]` for `x` `[B]`. Nobody may write to it."""
        key = (x.device if isinstance(x, Tensor) else None, len(x))
        if key not in self._made:
            self._made[key] = module_of(x).full_like(x, self._value)
        return self._made[key]
