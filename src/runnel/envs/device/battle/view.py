"""What units see, and what they may do."""

from __future__ import annotations

import numpy as np

from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.battle.field import SIDE, WAYS, Army
from runnel.envs.device.battle.units import Sides

STOP = len(WAYS)
NUM_MOVES = STOP + 1
_NUMBERS = 4


class BattleView:
    """Observations as one vector of each ally. Who is dead sees zeros; who is dead or out of sight is zeros.

    | numbers | of | what |
    | --- | --- | --- |
    | 4, kinds | each other ally, then each enemy | health (share), how far to the right and upwards (in lengths of one's own |
    | | | sight), time until it may strike (share); which kind it is |
    | 4, kinds | oneself | health, position (from 0 to 1), time until one may strike; which kind one is |

    Kinds are those that there are in this battle.
    """

    def __init__(self, sides: Sides) -> None:
        num, allies = len(sides.units), len(sides.allies)
        self._allies = allies
        kinds = np.array([[name == kind for name in sides.units] for kind in sides.kinds], np.float32)
        self.width = num * (_NUMBERS + len(kinds))
        self.state_width = num * _NUMBERS
        others = np.array([[j for j in range(num) if j != i] for i in range(allies)], np.int64).reshape(allies, num - 1)
        self._constants = Constants(
            health=1.0 / sides.each(lambda unit: unit.health),
            reload=1.0 / sides.each(lambda unit: unit.reload),
            sight=sides.each(lambda unit: unit.sight)[:allies, :, None],
            reach=sides.each(lambda unit: unit.reach)[:allies, :, None] ** 2,
            kinds=kinds[:, :, None],
            selves=np.arange(allies)[:, None],
            others=others,
        )

    def of(self, army: Army) -> Array:
        """`[E, A, width]`"""
        constants, xp, num = self._constants.beside(army.x), module_of(army.x), self._allies
        alive = army.health > 0.0
        health, wait = army.health * constants["health"], xp.clip(army.wait * constants["reload"], 0.0, 1.0)
        dx, dy = army.x - army.x[:num, None], army.y - army.y[:num, None]
        seen = (dx * dx + dy * dy < constants["sight"] ** 2) & alive[:num, None] & alive
        shape = seen.shape
        kinds = [xp.broadcast_to(kind, shape) for kind in constants["kinds"]]
        sight = constants["sight"]
        rows = [xp.broadcast_to(health, shape), dx / sight, dy / sight, xp.broadcast_to(wait, shape), *kinds]
        # [A, N, F, E], of which each ally gets all but itself
        others = (xp.stack(rows, 2) * seen[:, :, None])[constants["selves"], constants["others"]]
        mine = [xp.broadcast_to(kind[:num], health[:num].shape) for kind in constants["kinds"]]
        own = [health[:num], army.x[:num] / SIDE, army.y[:num] / SIDE, wait[:num], *mine]
        oneself = xp.stack(own, 1) * alive[:num, None]
        found = xp.concatenate((others.reshape(num, -1, shape[2]), oneself), 1)
        return found.swapaxes(0, 2).swapaxes(1, 2)

    def open(self, army: Army) -> Array:
        """What allies may do: stop always, move while they live, strike who lives and is in reach. `[E, A, actions]`"""
        constants, xp, num = self._constants.beside(army.x), module_of(army.x), self._allies
        alive = (army.health > 0.0)[:num, None]
        dx, dy = army.x[num:] - army.x[:num, None], army.y[num:] - army.y[:num, None]
        reached = (dx * dx + dy * dy < constants["reach"]) & alive & (army.health[num:] > 0.0)
        moves = xp.broadcast_to(alive, (num, STOP, alive.shape[2]))
        found = xp.concatenate((moves, xp.ones_like(alive), reached), 1)
        return found.swapaxes(0, 2).swapaxes(1, 2)

    def everything(self, army: Army) -> Array:
        """Health, position and time to reload of all units; zeros for the dead. `[E, state_width]`"""
        constants, xp = self._constants.beside(army.x), module_of(army.x)
        wait = xp.clip(army.wait * constants["reload"], 0.0, 1.0)
        rows = xp.stack((army.health * constants["health"], army.x / SIDE, army.y / SIDE, wait)) * (army.health > 0.0)
        return rows.reshape(self.state_width, -1).T
