"""Prioritised draws (Schaul et al. 2016, arXiv:1511.05952): by error, with weights that undo the bias of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import DataError
from runnel.core.state import State
from runnel.data.sum_tree import FANOUT, SumTree

Array = NDArray[Any]


class Priorities:
    """The priority `(|error| + floor)^alpha` of each of `size` units. What is new has the highest seen so far."""

    def __init__(self, size: int, *, alpha: float, floor: float) -> None:
        self.size, self._alpha, self._floor = size, alpha, floor
        self._tree = SumTree(size)
        self._highest = 1.0

    @staticmethod
    def num_bytes_of(size: int) -> int:
        """Bytes of the priorities of `size` units."""
        return 8 * (size + size // (FANOUT - 1))

    def renew(self, start: int, stop: int) -> None:
        """Units `start ... stop - 1` are new."""
        self._tree.fill(start, stop, self._highest)

    def draw(self, weight: Array, rng: np.random.Generator, *, count: int, beta: float) -> Array:
        """n of the first `count` units, one from each of n equal shares of the mass, and into `weight` `[n]` their importance
        `(count p_i)^-beta`, over the largest of the batch."""
        n, total = len(weight), self._tree.total
        units = self._tree.find((np.arange(n) + rng.random(n)) * (total / n))
        raw = (self._tree.get(units) * (count / total)) ** -beta
        np.divide(raw, raw.max(), out=weight, casting="same_kind")
        return units

    def update(self, units: Array, error: Array) -> None:
        """Errors of units that were drawn. `[n], [n]`"""
        if not np.isfinite(error).all():
            raise DataError("replay was given priorities that are not finite; send the absolute errors of the update")
        if len(units):
            priority = (error.astype(np.float64) + self._floor) ** self._alpha
            self._tree.set(units, priority)
            self._highest = max(self._highest, float(priority.max()))

    def snapshot(self) -> State:
        return {"priority": self._tree.get(np.arange(self.size)), "highest": self._highest}

    def restore(self, state: State) -> None:
        self._highest = float(state["highest"])
        self._tree = SumTree(self.size)
        self._tree.set(np.arange(self.size), state["priority"])
