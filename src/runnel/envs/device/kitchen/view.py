"""What cooks see, as one vector each."""

from __future__ import annotations

import numpy as np

from runnel.envs.device.arrays import Array, Constants, floats, module_of
from runnel.envs.device.base import Leaves
from runnel.envs.device.kitchen.layouts import FLOOR, NUM_COOKS, KitchenMap
from runnel.envs.device.kitchen.rules import COOKING, DISH, FULL, IDLE, KINDS, NUM_CODES, NUM_ITEMS, ONION, READY, soup

URGENT = 40
"""Steps before the end from which on cooks are told that time is short."""
_ITEM, _POT = 3, FULL + 3


class KitchenView:
    """Observations as one vector of each cook. Who looks comes first; everything is in sight.

    | numbers | of | what |
    | --- | --- | --- |
    | cells of the floor | oneself | which one one stands on |
    | 4 | | where one looks: north, south, east, west |
    | 3 | | holds an onion, a dish, a soup (the share of three onions that is in it) |
    | 5 | what is in front | a counter, onions, dishes, a pot, a window |
    | cells of the floor, 4, 3, 5 | the other cook | the same |
    | 3 each | counters, row after row | an onion, a dish, a soup |
    | 6 each | pots | at least one, two, three onions; cooking, the share of the time it has cooked; ready |
    | 1 | | fewer than 40 steps are left |
    """

    def __init__(self, layout: KitchenMap, *, steps: int, cook_time: int) -> None:
        self._steps, self._cook_time, self._pots = steps, cook_time, layout.num_pots
        floor = layout.cells(FLOOR)
        numbers = np.full(len(layout.ground), -1)
        numbers[floor] = np.arange(len(floor))
        self.width = (
            2 * (len(floor) + 4 + _ITEM + KINDS - 1) + _ITEM * (len(layout.places) - self._pots) + _POT * self._pots + 1
        )
        self._constants = Constants(
            numbers=numbers,
            floor=np.arange(len(floor))[:, None, None],
            ways=np.arange(4)[:, None, None],
            kinds=np.arange(1, KINDS)[:, None, None],
            ahead=layout.ahead,
            ground=layout.ground,
            items=items(),
            pots=pots(),
        )

    def of(self, state: Leaves) -> Array:
        """`[E, 2, width]`"""
        xp = module_of(state["at"])
        own = self._cooks(state)
        # the other's numbers are one's own, the other way round
        seen = (own, xp.flip(own, (1,)), self.shared(state))
        return xp.concatenate(seen).swapaxes(0, 2)

    def _cooks(self, state: Leaves) -> Array:
        """Where both are, where they look, and what they hold. `[n, 2, E]`"""
        constants, xp = self._constants.beside(state["at"]), module_of(state["at"])
        at, facing = state["at"].T, state["facing"].T
        kind = constants["ground"][constants["ahead"][facing, at]]
        flags = [constants["numbers"][at] == constants["floor"], facing == constants["ways"], kind == constants["kinds"]]
        where, looks, front = map(floats, flags)
        return xp.concatenate((where, looks, constants["items"][:, state["held"].T], front))

    def shared(self, state: Leaves) -> Array:
        """What both see alike: counters, pots and the clock. `[n, 2, E]`"""
        constants, xp = self._constants.beside(state["at"]), module_of(state["at"])
        things, pots, num = state["things"].T, self._pots, len(state["at"])
        on_counters = constants["items"][:, things[:-pots]].swapaxes(0, 1).reshape(-1, num)
        cooked = floats(state["ticks"].T)[:, None] / self._cook_time
        in_pots = xp.concatenate((constants["pots"][:, things[-pots:]].swapaxes(0, 1), cooked), 1).reshape(-1, num)
        urgent = floats(state["time"] > self._steps - URGENT)[None]
        found = xp.concatenate((on_counters, in_pots, urgent))
        return xp.broadcast_to(found[:, None], (len(found), NUM_COOKS, num))


def items() -> Array:
    """An onion, a dish, a soup: of each item. `[3, items]`"""
    found = np.zeros((_ITEM, NUM_CODES), np.float32)
    found[0, ONION], found[1, DISH] = 1.0, 1.0
    for onions in range(1, FULL + 1):
        found[2, soup(onions)] = onions / FULL
    return found[:, :NUM_ITEMS]


def pots() -> Array:
    """At least one, two, three onions, cooking, ready: of each content of a pot. `[5, codes]`"""
    found = np.zeros((_POT - 1, NUM_CODES), np.float32)
    for row, phase in ((FULL, IDLE), (FULL, COOKING), (FULL + 1, READY)):
        for onions in range(1, FULL + 1):
            found[:onions, phase + onions - 1] = 1.0
            found[row, phase + onions - 1] = phase != IDLE
    return found
