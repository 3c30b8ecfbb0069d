"""The enemy, by a script: strike who is in reach, else go where somebody is."""

from __future__ import annotations

import numpy as np

from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.battle.field import WAYS, Army
from runnel.envs.device.battle.units import Sides

NOBODY = -1
_FAR = 1e9


class Enemy:
    """SMAX's heuristic enemy, without its chance.

    Who has an ally in reach strikes: the one it struck before if that is still in reach, else the closest one. Else it goes
    towards the closest one in its sight, and if it sees nobody, towards its goal: its first place, turned round the middle of
    the field. Of four ways it takes the one that leads there most.
    """

    def __init__(self, sides: Sides) -> None:
        num = len(sides.allies)
        self._allies = num
        sight, reach = (sides.each(f)[num:, :, None] ** 2 for f in (lambda unit: unit.sight, lambda unit: unit.reach))
        self._constants = Constants(
            sight=sight.astype(np.float32),
            reach=reach.astype(np.float32),
            numbers=np.arange(num)[:, None],
            ways=np.array(WAYS, np.float32).T[:, :, None],
        )

    def decide(self, army: Army, aims: Array, goals: Array) -> tuple[Array, Array, Array]:
        """The ways of enemies `[2, M, E]`, the allies they strike `[M, E]`, and whether they strike. `aims` `[M, E]` are those
        whom they struck before (`NOBODY`: none), `goals` `[2, M, E]` where they go."""
        constants, xp, num = self._constants.beside(army.x), module_of(army.x), self._allies
        dx, dy = army.x[:num] - army.x[num:, None], army.y[:num] - army.y[num:, None]
        far = dx * dx + dy * dy
        alive = army.health[:num] > 0.0
        in_reach, in_sight = (far < constants["reach"]) & alive, (far < constants["sight"]) & alive
        same = (constants["numbers"] == aims[:, None]) & in_reach
        closest = xp.argmin(xp.where(in_reach, far, _FAR), 1)
        target = xp.where(same.any(1), aims, closest)
        to = self._towards(army, in_sight, xp.where(in_sight, far, _FAR), goals)
        # the first of ways that lead there equally
        way = xp.argmax((constants["ways"][:, :, None] * to[:, None]).sum(0), 0)
        return constants["ways"][:, way, 0], target, in_reach.any(1)

    def _towards(self, army: Army, in_sight: Array, far: Array, goals: Array) -> Array:
        """From where enemies are to where they go. `[2, M, E]`"""
        xp, num = module_of(army.x), self._allies
        whom = xp.argmin(far, 1)
        worlds = xp.arange(whom.shape[1]) if xp is np else xp.arange(whom.shape[1], device=whom.device)
        seen = in_sight.any(1)
        to = [xp.where(seen, at[whom, worlds], goal) - at[num:] for at, goal in ((army.x, goals[0]), (army.y, goals[1]))]
        return xp.stack(to)
