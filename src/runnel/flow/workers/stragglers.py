"""Stragglers: find the slowest rank of a trainer, with its stage and the seconds that the others wait."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median_low

STAGES = ("prepare", "update")
SHARE, LEAST_S = 0.2, 0.05
"""A rank is a straggler if it works longer than the median by more than this fraction and by more than these seconds,"""
IN_A_ROW = 8
"""in this number of consecutive updates."""
TELL_EVERY = 100
"""Number of updates between two warnings."""


class Stragglers:
    """Takes the seconds of each update, and returns metrics and warnings."""

    def __init__(self, trainer: str = "trainer") -> None:
        self._trainer = trainer
        self._slowest, self._row = -1, list[tuple[float, float]]()
        self._quiet = 0

    def add(self, seconds: Sequence[Sequence[float]]) -> tuple[dict[str, float], str]:
        """Seconds of prepare, update and waiting by rank -> metrics, and a warning or an empty text.

        >>> Stragglers().add([[1.0, 2.0, 0.5], [1.0, 2.5, 0.0]])[0]
        {'excess_s': 0.5, 'slowest': 1.0, 'wait_s': 0.25}
        """
        work = [prepare + update for prepare, update, _ in seconds]
        slowest = max(range(len(work)), key=work.__getitem__)
        usual = median_low(work)
        excess = work[slowest] - usual
        shown = {"excess_s": excess, "slowest": float(slowest), "wait_s": fmean(row[2] for row in seconds)}
        self._note(slowest if excess > max(SHARE * usual, LEAST_S) else -1, seconds)
        return shown, self._warning()

    def _note(self, slowest: int, seconds: Sequence[Sequence[float]]) -> None:
        if slowest != self._slowest:
            self._slowest, self._row = slowest, []
        if slowest >= 0:
            usual = [median_low(row[i] for row in seconds) for i in range(len(STAGES))]
            prepare, update = (seconds[slowest][i] - usual[i] for i in range(len(STAGES)))
            self._row = [*self._row, (prepare, update)][-IN_A_ROW:]

    def _warning(self) -> str:
        self._quiet -= 1
        if len(self._row) < IN_A_ROW or self._quiet > 0:
            return ""
        self._quiet = TELL_EVERY
        excess = [fmean(pair[i] for pair in self._row) for i in range(len(STAGES))]
        worst = max(range(len(STAGES)), key=excess.__getitem__)
        name = f"{self._trainer}-{self._slowest}" if self._slowest else self._trainer
        return (
            f"rank {self._slowest} (worker {name}) holds the others up: in {STAGES[worst]} it takes {excess[worst]:.3f} s more "
            f"than the median, {IN_A_ROW} updates in a row"
        )
