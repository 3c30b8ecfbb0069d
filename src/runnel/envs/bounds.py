"""Checks whether observations lie within the bounds of their space, on samples: a check costs as much as a small step.

Shape and type are checked at every step, where an observation is written (`ObsLeaf.checked`). Bounds are checked when a vector
starts, at the end of each episode, and in between once in `EVERY` steps of each environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runnel.core.state import Array
from runnel.envs.spaces import ObsLeaf

EVERY = 64
ROUNDING = 1e-5
"""Tolerance, relative to the bound or to 1, whichever is larger: less is rounding."""


def due_rows(clock: int, num_envs: int) -> slice | None:
    """The rows to check at step `clock`; None if there are none. Each row's turn comes once in `EVERY` steps.

    >>> due_rows(66, 8), due_rows(66, 200), due_rows(20, 8)
    (slice(2, None, 64), slice(2, None, 64), None)
    """
    first = clock % EVERY
    return slice(first, None, EVERY) if first < num_envs else None


class Bounds:
    """The bounds of all leaves that have bounds."""

    def __init__(self, leaves: Sequence[ObsLeaf]) -> None:
        self._parts = [(leaf, leaf.low, leaf.high) for leaf in leaves if leaf.low is not None and leaf.high is not None]
        self._wide = [_widened(low, high) for _, low, high in self._parts]

    def __bool__(self) -> bool:
        return bool(self._parts)

    def outside(self, arrays: Mapping[str, Array], rows: slice) -> tuple[int, str] | None:
        """The first of `rows` of `arrays` (by leaf, `[B, ...]`) outside the space, with a text about it; None if there is none.

        A NaN passes, because samplers look for NaN in every segment and raise an error of their own.
        """
        for (leaf, low, high), (least, most) in zip(self._parts, self._wide, strict=True):
            found = arrays[leaf.key][rows]
            beyond = (found < least) | (found > most)
            if beyond.any():
                row, *place = (int(i) for i in np.argwhere(beyond)[0])
                value, bounds = found[(row, *place)], [x[tuple(place)] for x in (low, high)]
                where = f" at {place}" if place else ""
                text = f"gave {leaf.key!r} with {value:g}{where}, but its space says {bounds[0]:g} to {bounds[1]:g} there"
                number = range(len(arrays[leaf.key]))[rows][row]
                return number, f"{text} ({leaf.about}); widen the space, or clip what it gives"
        return None


def _widened(low: Array, high: Array) -> tuple[Array, Array]:
    """Bounds with a tolerance: a cosine of 1.0000001 must not end a run of hours.

    >>> [x.tolist() for x in _widened(np.array([0, 0], np.uint8), np.array([1, 9], np.uint8))]
    [[0, 0], [1, 9]]
    """
    if low.dtype.kind != "f":
        return low, high
    room = ROUNDING * np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    room = np.where(np.isfinite(room), room, 0.0)  # inf - inf would be NaN
    return low - room, high + room
