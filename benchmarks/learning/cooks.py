"""A pair of cooks by a script, for kitchens in which each can reach everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from benchmarks.learning.anchors import Obs, Player

from runnel.envs.device.kitchen.layouts import DISHES, FLOOR, ONIONS, POT, WINDOW, KitchenMap, layout_of

STAY, HAND = 4, 5
ONION, DISH, SOUP = range(3)


def serve(layout: str = "cramped_room", seed: int = 1) -> Player:
    """Each cook does what is of use and what the other is not about to do: an onion for a pot that lacks one, a dish for a pot
    that cooks, a soup to the window. Who comes no further steps aside at random; so does, now and then, who meets the other."""
    kitchen, rng = layout_of(layout), np.random.default_rng(seed)
    before: dict[str, tuple[int, int]] = {}

    def act(obs: Obs) -> dict[str, Any]:
        actions = {}
        for agent, seen in obs.items():
            room = Room(kitchen, seen)
            action = room.decide()
            aside = 0.5 if before.get(agent) == (room.me, action) else 0.2 if room.is_close else 0.0
            if action != HAND and rng.random() < aside:
                action = int(rng.integers(4))
            actions[agent], before[agent] = action, (room.me, action)
        return actions

    return act


class Room:
    """What one cook sees, as `KitchenView` writes it down."""

    def __init__(self, kitchen: KitchenMap, seen: Any) -> None:
        self._kitchen, floor = kitchen, kitchen.cells(FLOOR)
        numbers = iter(seen.tolist())
        self.me, self.way, self.hand = self._cook(floor, numbers)
        self.other, _, self.other_hand = self._cook(floor, numbers)
        counters = len(kitchen.places) - kitchen.num_pots
        _take(numbers, 3 * counters)
        self.pots = {cell: _take(numbers, 6) for cell in kitchen.cells(POT)}

    def _cook(self, floor: list[int], numbers: Iterator[float]) -> tuple[int, int, int | None]:
        at, way = floor[_take(numbers, len(floor)).index(1.0)], _take(numbers, 4).index(1.0)
        held = _take(numbers, 3)
        _take(numbers, 5)
        return at, way, int(np.argmax(held)) if any(held) else None

    @property
    def is_close(self) -> bool:
        """Whether the other stands beside."""
        return self.other in self._kitchen.ahead[:, self.me]

    def decide(self) -> int:
        goals = self._goals()
        if not goals:
            return STAY
        if int(self._kitchen.ahead[self.way, self.me]) in goals:
            return HAND
        for taken in ({self.other}, set()):
            step = self._way_to(goals, taken)
            if step is not None:
                return step
        return STAY

    def _goals(self) -> list[int]:
        """The cells of which one is to be in front."""
        cells, hands = self._kitchen.cells, (self.hand, self.other_hand)
        open_ = {cell: 3 - int(sum(pot[:3])) for cell, pot in self.pots.items() if not (pot[3] or pot[4])}
        if self.hand == SOUP:
            return cells(WINDOW)
        if self.hand == DISH:
            # at a pot that still cooks, a hand with a dish does nothing
            return [cell for cell, pot in self.pots.items() if pot[4]] or [cell for cell, pot in self.pots.items() if pot[3]]
        if self.hand == ONION:
            return [cell for cell, lacks in open_.items() if lacks]
        soups = len(self.pots) - len(open_)
        if soups > hands.count(DISH):
            return cells(DISHES)
        lacking = sum(open_.values()) - hands.count(ONION)
        # while all pots cook, an onion for the next soup
        return cells(ONIONS) if lacking > 0 or (soups and hands.count(ONION) == 0) else []

    def _way_to(self, goals: list[int], taken: set[int]) -> int | None:
        """The first step of a shortest way to a cell with a goal beside it, and there, the turn."""
        ahead, ground = self._kitchen.ahead, self._kitchen.ground
        first: dict[int, int] = {self.me: STAY}
        edge = [self.me]
        while edge:
            after = []
            for cell in edge:
                turns = [way for way in range(4) if int(ahead[way, cell]) in goals]
                if turns:
                    return turns[0] if cell == self.me else first[cell]
                for way in range(4):
                    beside = int(ahead[way, cell])
                    if ground[beside] == FLOOR and beside not in first and beside not in taken:
                        first[beside] = way if cell == self.me else first[cell]
                        after.append(beside)
            edge = after
        return None


def _take(numbers: Iterator[float], num: int) -> list[float]:
    return [next(numbers) for _ in range(num)]
