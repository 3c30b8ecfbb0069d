"""What the hand of a cook does, as one table: what is in front, what is held and what lies there say what is then."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from runnel.core.state import Array
from runnel.envs.device.kitchen.layouts import COUNTER, DISHES, ONIONS, POT, WINDOW

FULL = 3
"""Onions in a soup that is asked for."""
NOTHING, ONION, DISH = range(3)
NUM_ITEMS = DISH + FULL + 1
"""Items that are held or lie on counters: nothing, an onion, a dish, and soups of one, two or three onions on a dish."""
IDLE, COOKING, READY = (NUM_ITEMS + phase * FULL for phase in range(3))
NUM_CODES = NUM_ITEMS + 3 * FULL
"""What a pot holds is nothing, or one to three onions that are not yet cooking, cooking, or ready: `IDLE + onions - 1`."""
NO_EVENT, PLACED, DISH_TAKEN, SOUP_TAKEN, DELIVERED, REFUSED = range(6)
"""What a hand did that is paid: an onion into a pot, a dish from the pile, a soup out of a pot, a soup out of the window (a
smaller one is taken, and pays nothing)."""
NUM_EVENTS, KINDS = 6, 6


class HandResult(NamedTuple):
    """What is held then, what lies in front, and what was done that counts."""

    held: int
    there: int
    event: int = NO_EVENT


def soup(onions: int) -> int:
    """The item that is a soup of so many onions on a dish."""
    return DISH + onions


def outcome(kind: int, held: int, there: int, *, alone: bool) -> HandResult:
    """What a hand holds and what lies in front after a cook has used it. With `alone` a full pot begins to cook by itself."""
    empty = held == NOTHING
    if kind == ONIONS and empty:
        return HandResult(ONION, there)
    if kind == DISHES and empty:
        return HandResult(DISH, there, DISH_TAKEN)
    if kind == COUNTER and empty != (there == NOTHING):
        return HandResult(there, held)
    if kind == WINDOW and held > DISH:
        return HandResult(NOTHING, there, DELIVERED if held == soup(FULL) else REFUSED)
    if kind == POT:
        return _at_pot(held, there, alone)
    return HandResult(held, there)


def _at_pot(held: int, there: int, alone: bool) -> HandResult:
    onions = (there - IDLE) % FULL + 1 if there else 0
    idle = there == NOTHING or IDLE <= there < COOKING
    if held == ONION and idle and onions < FULL:
        lit = alone and onions + 1 == FULL
        return HandResult(NOTHING, (COOKING if lit else IDLE) + onions, PLACED)
    if held == NOTHING and idle and onions and not alone:
        return HandResult(NOTHING, COOKING + onions - 1)
    if held == DISH and there >= READY:
        return HandResult(soup(onions), NOTHING, SOUP_TAKEN)
    return HandResult(held, there)


def table(*, alone: bool) -> dict[str, Array]:
    """All outcomes: `held`, `there` and `event` by `number(kind, held, there)`. What cannot be stays as it is."""
    found = [
        outcome(kind, held, there, alone=alone)
        for kind in range(KINDS)
        for held in range(NUM_ITEMS)
        for there in range(NUM_CODES)
    ]
    return {name: np.array(column, np.int64) for name, column in zip(HandResult._fields, zip(*found, strict=True), strict=True)}


def number(kind: Array, held: Array, there: Array) -> Array:
    """Where an outcome stands in the table."""
    return (kind * NUM_ITEMS + held) * NUM_CODES + there
