"""What cooks see, as planes for convolutions."""

from __future__ import annotations

import numpy as np

from runnel.envs.device.arrays import Array, Constants, floats, module_of
from runnel.envs.device.base import Leaves
from runnel.envs.device.kitchen.layouts import COUNTER, DISHES, NUM_COOKS, ONIONS, POT, WINDOW, KitchenMap
from runnel.envs.device.kitchen.rules import COOKING, DISH, FULL, IDLE, NUM_CODES, ONION, READY, soup
from runnel.envs.device.kitchen.view import URGENT

NUM_PLANES = 26
_MAP = {10: POT, 11: COUNTER, 12: ONIONS, 14: DISHES, 15: WINDOW}
"""Planes of the map. Those of tomatoes (13, 17, 19, 24) stay empty."""
IN_POT, IN_SOUP, LEFT, DONE, DISH_THERE, ONION_THERE, URGENCY = 16, 18, 20, 21, 22, 23, 25
_FIRST, _LYING = 10, 16
"""The first planes of the map, and of what lies where."""
THINGS = (IN_POT, IN_SOUP, LEFT, DONE, DISH_THERE, ONION_THERE)


class KitchenPlanes:
    """The 26 planes of Overcooked-AI 1.1.0 (`lossless_state_encoding`), channels first, rows before columns.

    Planes 0 and 1 are oneself and the other, 2 to 9 where both look (each of them north, south, east, west), 10 to 15 the map.
    From 16 to 24 they say what lies where, in numbers: onions in a pot that does not cook, onions in a soup, steps until it is
    ready, soups that are ready, dishes, onions. What a cook holds lies where it stands. Plane 25 is 1 in the last 40 steps.
    """

    def __init__(self, layout: KitchenMap, *, steps: int, cook_time: int) -> None:
        self._steps, self._pots = steps, layout.num_pots
        self.shape = (NUM_PLANES, layout.height, layout.width)
        cells = len(layout.ground)
        still = np.zeros((NUM_PLANES, cells), np.float32)
        for plane, kind in _MAP.items():
            still[plane] = layout.ground == kind
        spread = np.zeros((len(layout.places), cells), np.float32)
        spread[np.arange(len(layout.places)), layout.places] = 1.0
        self._constants = Constants(
            ground=still[_FIRST:_LYING],
            cells=np.arange(cells),
            ways=np.arange(4),
            things=contents(cook_time),
            spread=spread,
            pots=spread[-self._pots :],
        )

    def of(self, state: Leaves) -> Array:
        """`[E, 2, 26, H, W]`"""
        constants, xp = self._constants.beside(state["at"]), module_of(state["at"])
        here = state["at"][:, :, None] == constants["cells"]  # [E, 2, cells]
        looks = (state["facing"][:, :, None] == constants["ways"])[..., None] & here[:, :, None]
        here, looks = floats(here), floats(looks)
        num, cells = len(here), here.shape[2]
        own = xp.stack((here, xp.flip(here, (1,))), 2)
        both = xp.concatenate((looks, xp.flip(looks, (1,))), 2)
        ground = xp.broadcast_to(constants["ground"], (num, NUM_COOKS, *constants["ground"].shape))
        lying = xp.broadcast_to(self._lying(state, here)[:, None], (num, NUM_COOKS, NUM_PLANES - _LYING, cells))
        return xp.concatenate((own, both, ground, lying), 2).reshape(num, NUM_COOKS, *self.shape)

    def _lying(self, state: Leaves, here: Array) -> Array:
        """What lies where, on counters, in pots and in hands, and the clock. `[E, 10, cells]`"""
        constants, xp = self._constants.beside(state["at"]), module_of(state["at"])
        lie = constants["things"][state["things"]].swapaxes(1, 2) @ constants["spread"]
        held = constants["things"][state["held"]].swapaxes(1, 2) @ here
        found = dict(zip(THINGS, (lie + held).swapaxes(0, 1), strict=True))
        cooked = floats(state["ticks"]) @ constants["pots"]
        found[LEFT] = found[LEFT] - cooked
        found[URGENCY] = xp.broadcast_to(floats(state["time"] > self._steps - URGENT)[:, None], cooked.shape)
        nothing = xp.zeros_like(cooked)
        return xp.stack([found.get(plane, nothing) for plane in range(_LYING, NUM_PLANES)], 1)


def contents(cook_time: int) -> Array:
    """What each item and each content of a pot is on the planes of `THINGS`. `[codes, 6]`"""
    found = np.zeros((NUM_CODES, NUM_PLANES), np.float32)
    found[ONION, ONION_THERE], found[DISH, DISH_THERE] = 1.0, 1.0
    for onions in range(1, FULL + 1):
        found[IDLE + onions - 1, IN_POT] = onions
        for code in (COOKING + onions - 1, READY + onions - 1, soup(onions)):
            found[code, IN_SOUP] = onions
        found[COOKING + onions - 1, LEFT] = cook_time
        for code in (READY + onions - 1, soup(onions)):
            found[code, DONE] = 1.0
    return found[:, THINGS]
