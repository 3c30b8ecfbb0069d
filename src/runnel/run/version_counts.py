"""The steps and tokens behind each version, for rows that come later than the update of their version.

An evaluator in a process of its own measures version v while the learner goes on; its result arrives many updates later, or
even before the update that made v has been reported. Its row says the steps of v, not those of the moment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right

MOST = 1 << 20
"""Versions that are remembered at most (24 bytes each)."""


class VersionCounts:
    """Steps and tokens of the newest versions, in the order in which they were made."""

    def __init__(self) -> None:
        self._versions, self._steps, self._tokens = (array("q") for _ in range(3))
        self.begin(0, 0, 0)

    def begin(self, version: int, steps: int, tokens: int) -> None:
        """Know this version alone: a run starts, or goes on from a checkpoint."""
        for column, value in zip(self._columns(), (version, steps, tokens), strict=True):
            column[:] = array("q", [value])

    def add(self, version: int, steps: int, tokens: int) -> None:
        """An update made `version`."""
        for column, value in zip(self._columns(), (version, steps, tokens), strict=True):
            column.append(value)
            if len(column) > MOST:
                del column[: MOST // 2]

    def forget_before(self, version: int) -> None:
        """Forget the versions before `version`: no row will ask for them."""
        old = max(bisect_right(self._versions, version) - 1, 0)
        for column in self._columns():
            del column[:old]

    def of(self, version: int) -> tuple[int, int]:
        """Steps and tokens of `version`, or of the newest before it that is known (of one that is forgotten, the oldest)."""
        at = max(bisect_right(self._versions, version) - 1, 0)
        return self._steps[at], self._tokens[at]

    def _columns(self) -> tuple[array[int], array[int], array[int]]:
        return self._versions, self._steps, self._tokens
