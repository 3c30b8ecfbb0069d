"""Kuhn poker by its rules, and all of its pure strategies one by one: no tree, no sequences, no OpenSpiel."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np

HISTORIES = (("", "pb"), ("p", "b"))
"""What has been done when each seat decides: p for pass, b for bet."""
PURE = [tuple(zip(*[iter(bits)] * 2, strict=True)) for bits in product((0, 1), repeat=6)]
"""All pure strategies of a seat: for each card, what it does at its first and at its second history (1 bets)."""


def paid(cards: tuple[int, ...], history: str) -> float | None:
    """What the first seat gets, or None where the game goes on. Antes and bets are 1."""
    higher = 1.0 if cards[0] > cards[1] else -1.0
    return {"pp": higher, "bb": 2 * higher, "pbb": 2 * higher, "bp": 1.0, "pbp": -1.0}.get(history)


def value(first: np.ndarray, second: np.ndarray) -> float:
    """What the first seat gets on average. `[card, history]` is the probability of a bet, of each seat."""

    def play(cards: tuple[int, ...], history: str) -> float:
        end = paid(cards, history)
        if end is not None:
            return end
        seat = len(history) % 2
        bets = (first, second)[seat][cards[seat], HISTORIES[seat].index(history)]
        return bets * play(cards, history + "b") + (1 - bets) * play(cards, history + "p")

    return float(np.mean([play(cards, "") for cards in permutations(range(3), 2)]))


def exploitability(first: np.ndarray, second: np.ndarray) -> float:
    """Half of what both gain by the best of their pure strategies."""
    best = max(value(np.array(x, float), second) for x in PURE), max(-value(first, np.array(y, float)) for y in PURE)
    return sum(best) / 2
