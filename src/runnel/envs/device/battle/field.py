"""How units move, strike, and push each other away: ticks of 1/16 s, eight of them a step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.battle.units import Sides

SIDE = 32.0
"""The field is a square of this side; its rim kills."""
TICK, TICKS = 1.0 / 16.0, 8
WAYS = ((0.0, 1.0), (1.0, 0.0), (0.0, -1.0), (-1.0, 0.0))
"""Up, right, down, left."""
NEAR = 1e-6


class Army(NamedTuple):
    """What changes in a battle, of all units. `[N, E]` each."""

    x: Array
    y: Array
    health: Array
    wait: Array
    """Seconds until it may strike again; at 0 or below it may."""


class Orders(NamedTuple):
    """What units do in one step. `[N, E]` each."""

    dx: Array
    dy: Array
    target: Array
    """The number of the unit at which it strikes."""
    strikes: Array


class Field:
    """The rules of movement and of blows."""

    def __init__(self, sides: Sides) -> None:
        num = len(sides.units)
        radius = sides.each(lambda unit: unit.radius)
        # each pair of units once: who is in it, and whom a push moves forwards and backwards
        first, second = np.triu_indices(num, 1)
        moved = (np.arange(num)[:, None] == first) * 1.0 - (np.arange(num)[:, None] == second)
        self._constants = Constants(
            stride=sides.each(lambda unit: unit.speed) * TICK,
            blow=sides.each(lambda unit: unit.blow),
            reach=sides.each(lambda unit: unit.reach) ** 2,
            reload=sides.each(lambda unit: unit.reload),
            first=first,
            second=second,
            touch=radius[first] + radius[second],
            moved=moved.astype(np.float32),
            numbers=np.arange(num)[:, None],
        )

    def step(self, army: Army, orders: Orders) -> Army:
        constants, xp = self._constants.beside(army.x), module_of(army.x)
        num = army.x.shape[1]
        worlds = xp.arange(num) if xp is np else xp.arange(num, device=army.x.device)
        # how much everybody takes of whom, if it strikes: [N, N, E], whom first
        aimed = ((orders.target == constants["numbers"][:, None]) & orders.strikes) * constants["blow"]
        for _ in range(TICKS):
            army = self._tick(army, orders, aimed, worlds)
        return army

    def _tick(self, army: Army, orders: Orders, aimed: Array, worlds: Array) -> Army:
        """Everybody acts on what was before the tick. Then the rim kills, and who is alive pushes others away."""
        constants, xp = self._constants.beside(army.x), module_of(army.x)
        alive, target = army.health > 0.0, orders.target
        dx, dy = army.x - army.x[target, worlds], army.y - army.y[target, worlds]
        near = (dx * dx + dy * dy < constants["reach"]) & alive[target, worlds]
        hits = orders.strikes & alive & near & (army.wait <= 0.0)
        health = xp.clip(army.health - (aimed * hits).sum(1), 0.0, None)
        wait = xp.where(hits, constants["reload"], army.wait - TICK)
        x, y = (
            xp.clip(at + way * constants["stride"] * alive, 0.0, SIDE) for at, way in ((army.x, orders.dx), (army.y, orders.dy))
        )
        out = (x <= 0.0) | (x >= SIDE) | (y <= 0.0) | (y >= SIDE)
        health = xp.where(out, 0.0, health)
        return Army(*self.apart(x, y, health > 0.0), health, wait)

    def apart(self, x: Array, y: Array, alive: Array) -> tuple[Array, Array]:
        """Positions of units after those that are alive and overlap have pushed each other away. `[N, E]` each"""
        xp = module_of(x)
        constants = self._constants.beside(x)
        first, second = constants["first"], constants["second"]
        dx, dy = x[first] - x[second], y[first] - y[second]
        distance = xp.sqrt(dx * dx + dy * dy) + NEAR
        # half of what is missing, for each of the two
        push = xp.clip(constants["touch"] / distance - 1.0, 0.0, None) * (alive[first] & alive[second]) * 0.5
        return x + constants["moved"] @ (dx * push), y + constants["moved"] @ (dy * push)
