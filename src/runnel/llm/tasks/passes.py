"""Passes over a list of prompts that may grow: which prompt each segment of a stream gets, as a pure function."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from runnel.core.rng import make_rng
from runnel.core.state import Array


class Passes:
    """Each pass has every prompt once, in a new seeded order.

    Prompts that come later (their places are those behind the first `num`) belong to the pass that goes on when they come:
    they and what is left of that pass take turns, so every second prompt is a new one until one of the two is used up. Later
    passes know no difference. The seed, the segment's number, and since which segment each later prompt is there decide, and
    nothing else does.

    >>> passes = Passes(3, seed=0)
    >>> [[passes.at(s, since=[4, 4]) for s in range(a, b)] for a, b in ((0, 3), (3, 8), (8, 13))]
    [[1, 0, 2], [1, 3, 0, 4, 2], [3, 2, 1, 4, 0]]
    """

    def __init__(self, num: int, *, seed: int, name: str = "prompts") -> None:
        self._first, self._seed, self._name = num, seed, name
        self._restart()

    def _restart(self) -> None:
        self._start, self._pass, self._num = 0, -1, self._first
        self._order: Array = np.empty(0, dtype=np.int64)
        """The places of the segments from number `_start` on, to the end of the pass."""

    def at(self, sequence: int, since: Sequence[int] = ()) -> int:
        """The place of the prompt of segment `sequence`. `since` has for each later prompt the number of the first segment
        that may have it; the numbers never fall."""
        num = self._first + bisect_right(since, sequence)
        if sequence < self._start or num < self._num:  # a segment is made again: go through it from the beginning
            self._restart()
        while self._num < num:
            self._grow(since)
        self._go_to(sequence)
        return int(self._order[sequence - self._start])

    def _go_to(self, sequence: int) -> None:
        """Begin the pass that has segment `sequence`, unless it has begun."""
        beyond = sequence - self._start - len(self._order)
        if beyond >= 0:
            passes = beyond // self._num
            self._start, self._pass = self._start + len(self._order) + passes * self._num, self._pass + passes + 1
            self._order = make_rng(self._seed, self._name, "pass", self._pass).permutation(self._num)

    def _grow(self, since: Sequence[int]) -> None:
        """Take the next prompts in, all that come with the same segment."""
        begun, first = self._num - self._first, since[self._num - self._first]
        self._go_to(first)
        end = bisect_right(since, first)
        new = self._first + begun + make_rng(self._seed, self._name, "new", begun).permutation(end - begun)
        self._order, self._start = _in_turn(new, self._order[first - self._start :]), first
        self._num = self._first + end


def _in_turn(new: Array, old: Array) -> Array:
    """One of each in turn, then what is left.

    >>> _in_turn(np.array([7, 8]), np.array([1, 2, 3, 4])).tolist()
    [7, 1, 8, 2, 3, 4]
    """
    both = min(len(new), len(old))
    pairs = np.stack([new[:both], old[:both]], axis=1).reshape(-1)
    return np.concatenate([pairs, new[both:], old[both:]])
