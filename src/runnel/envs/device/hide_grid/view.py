"""What agents of the grid see, and what only critics see."""

from __future__ import annotations

import numpy as np

from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import Leaves
from runnel.envs.device.hide_grid.plan import CELLS, FREE, HIDERS, NOWHERE, SEEKERS, SIZE, STEPS, WIDTH, GridSizes

AROUND = tuple(r * WIDTH + c for r in (-1, 0, 1) for c in (-1, 0, 1) if r or c)
_SELF, _OTHER, _THING, _DOOR = 25, 4, 7, 3


class GridView:
    """Observations as one vector of each agent. Distances are rows and columns, in sizes of the board; what is out of sight is
    zeros behind a 0.

    | numbers | of | what |
    | --- | --- | --- |
    | 2, 4 | oneself | row, column; where one looks: up, down, left, right |
    | 4 | | up on something, on the ladder, holds a block, holds the ladder |
    | 3 | | 1 for a hider and -1 for a seeker, whether it is preparation, the share of the phase that is left |
    | 8 | the cells around, row after row | whether it is closed |
    | 4 | what is in front | a block, the ladder, locked by one's team, by the other |
    | 4 each | other agents, one's own team first | in sight, row, column, up |
    | 7 each | blocks, then the ladder | in sight, row, column, locked by one's team, by the other, held, in a door |
    | 3 each | two doors, which all know | there, row, column |
    """

    def __init__(self, sizes: GridSizes) -> None:
        self._sizes, n = sizes, sizes.agents
        self.width = _SELF + _OTHER * (n - 1) + _THING * sizes.things + 2 * _DOOR
        self.state_width = 9 * n + 5 * sizes.things + 2 * _DOOR + 4 + 2
        teams = np.array(sizes.teams)
        others = [sorted((j for j in range(n) if j != i), key=lambda j: (teams[j] != teams[i], j)) for i in range(n)]
        cells = np.arange(CELLS)
        self._constants = Constants(
            others=np.array(others, np.int64).reshape(n, n - 1),
            selves=np.arange(n)[:, None],
            teams=teams[:, None],
            side=np.where(teams == HIDERS, 1.0, -1.0).astype(np.float32)[:, None],
            rows=((cells // WIDTH - 1) / (SIZE - 1)).astype(np.float32),
            columns=((cells % WIDTH - 1) / (SIZE - 1)).astype(np.float32),
            numbers=np.arange(1, sizes.things + 1)[:, None, None],
            around=np.array(AROUND)[:, None, None],
            ways=np.arange(4)[:, None, None],
            steps=np.array(STEPS),
            owners=np.array((HIDERS, SEEKERS))[:, None, None],
        )

    def of(self, state: Leaves) -> Array:
        """`[E, A, width]`"""
        xp = module_of(state["time"])
        parts = [*self._oneself(state), *self._beside(state), *self._in_sight(state), *self._doors(state)]
        return xp.concatenate(parts).swapaxes(0, 2)

    def _oneself(self, state: Leaves) -> list[Array]:
        constants, xp = self._constants.beside(state["time"]), module_of(state["time"])
        cells, things, holds = state["agents"].T, state["things"].T, state["holds"].T
        prep, rest = self._clock(state)
        shape = cells.shape
        flags = [
            state["up"].T,
            cells == things[-1:],
            (holds > 0) & (holds <= self._sizes.blocks),
            holds == self._sizes.things,
        ]
        return [
            xp.stack((constants["rows"][cells], constants["columns"][cells])),
            _floats(constants["ways"] == state["facing"].T),
            _floats(xp.stack(flags)),
            xp.stack([xp.broadcast_to(x, shape) for x in (constants["side"], prep, rest)]),
        ]

    def _clock(self, state: Leaves) -> tuple[Array, Array]:
        """Whether it is still preparation, and the share of the phase that is left. `[1, E]` each"""
        xp, time, sizes = module_of(state["time"]), state["time"][None], self._sizes
        prep = time < sizes.prep_steps
        main = max(sizes.steps - sizes.prep_steps, 1)
        rest = xp.where(prep, (sizes.prep_steps - time) / max(sizes.prep_steps, 1), (sizes.steps - time) / main)
        return _floats(prep), _floats(rest)

    def _beside(self, state: Leaves) -> list[Array]:
        constants, xp = self._constants.beside(state["time"]), module_of(state["time"])
        cells, things, locks = state["agents"].T, state["things"].T, state["locks"].T
        near = cells + constants["around"]
        worlds = xp.arange(cells.shape[1]) if xp is np else xp.arange(cells.shape[1], device=cells.device)
        closed = state["ground"].T[near, worlds] != FREE
        for k in range(self._sizes.blocks):
            closed = closed | (near == things[k])
        front = things[:, None] == cells + constants["steps"][state["facing"].T]
        of_team = (front & (locks[:, None] == constants["teams"])).any(0)
        of_others = (front & (locks[:, None] == 3 - constants["teams"])).any(0)
        return [_floats(closed), _floats(xp.stack((front[:-1].any(0), front[-1], of_team, of_others)))]

    def _in_sight(self, state: Leaves) -> list[Array]:
        """Other agents, blocks and ladder. `[F, A, E]` each"""
        constants, xp, n = self._constants.beside(state["time"]), module_of(state["time"]), self._sizes.agents
        cells, things, locks, holds = (state[key].T for key in ("agents", "things", "locks", "holds"))
        sees = _floats(state["sees"].swapaxes(0, 2))
        targets = xp.concatenate((cells, things))
        away = [sees]
        for axis in ("rows", "columns"):
            place = constants[axis][targets]
            away.append((place[None] - place[:n, None]) * sees)
        selves, others = constants["selves"], constants["others"]
        up = sees[:, :n] * state["up"].T
        of_agents = [x[selves, others].swapaxes(0, 1) for x in (*away, up)]
        held = (holds == constants["numbers"]).any(1)
        of_things = [x[:, n:] for x in away]
        near = sees[:, n:]
        own, other = locks[None] == constants["teams"][:, None], locks[None] == 3 - constants["teams"][:, None]
        of_things += [near * own, near * other, near * held, near * self._in_doors(state)]
        return [*of_agents, *(x.swapaxes(0, 1) for x in of_things)]

    def _in_doors(self, state: Leaves) -> Array:
        """What stands in a door. `[N, E]`"""
        return (state["things"].T[:, None] == state["doors"].T).any(1)

    def _doors(self, state: Leaves) -> list[Array]:
        constants, xp = self._constants.beside(state["time"]), module_of(state["time"])
        doors, cells = state["doors"].T, state["agents"].T
        there = _floats(doors != NOWHERE)[:, None]
        found = [xp.broadcast_to(there, (2, *cells.shape))]
        for axis in ("rows", "columns"):
            found.append((constants[axis][doors][:, None] - constants[axis][cells]) * there)
        return found

    def everything(self, state: Leaves) -> Array:
        """The global state: everybody, every thing and every door where it is, the walls of the room, the clock.
        `[E, state_width]`"""
        constants, xp = self._constants.beside(state["time"]), module_of(state["time"])
        cells, things, doors, holds = (state[key].T for key in ("agents", "things", "doors", "holds"))
        blocks = self._sizes.blocks
        there = doors != NOWHERE
        parts = [x for axis in ("rows", "columns") for x in (constants[axis][cells], constants[axis][things])]
        parts += [constants[axis][doors] * there for axis in ("rows", "columns")]
        parts += list(constants["ways"] == state["facing"].T)
        parts += [state["up"].T, (holds > 0) & (holds <= blocks), holds > blocks, there]
        parts += list(constants["owners"] == state["locks"].T)
        parts += [(holds == constants["numbers"]).any(1), state["room"].T / (SIZE - 1), *self._clock(state)]
        return xp.concatenate([_floats(x) for x in parts]).T


def _floats(x: Array) -> Array:
    """As float32."""
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.float()
