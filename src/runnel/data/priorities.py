"""Prioritised draws (Schaul et al. 2016, arXiv:1511.05952): in proportion to errors, with weights that undo the bias."""

from __future__ import annotations

import numpy as np

from runnel.core.errors import DataError
from runnel.core.state import Array, State
from runnel.data.sum_tree import FANOUT, SumTree


class Priorities:
    """The priority `(|error| + floor)^alpha` of each of `size` units. New units get the highest priority so far."""

    def __init__(self, size: int, *, alpha: float, floor: float) -> None:
        self.size, self._alpha, self._floor = size, alpha, floor
        self._tree = SumTree(size)
        self._highest = 1.0

    @staticmethod
    def num_bytes_of(size: int) -> int:
        """Bytes of the priorities of `size` units."""
        return 8 * (size + size // (FANOUT - 1))

    def renew(self, start: int, stop: int) -> None:
        """Give units `start ... stop - 1` the priority of new ones."""
        self._tree.fill(start, stop, self._highest)

    def draw(self, weight: Array, rng: np.random.Generator, *, count: int, beta: float) -> Array:
        """Draw n of the first `count` units. Writes importance weights `(count p_i)^-beta / max` into `weight` `[n]`.

        The draw is stratified: one unit from each of n equal parts of the total priority.
        """
        n, total = len(weight), self._tree.total
        units = self._tree.find((np.arange(n) + rng.random(n)) * (total / n))
        raw = (self._tree.get(units) * (count / total)) ** -beta
        np.divide(raw, raw.max(), out=weight, casting="same_kind")
        return units

    def update(self, units: Array, error: Array) -> None:
        """Set the priorities of drawn units from their absolute errors. `[n], [n]`"""
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
