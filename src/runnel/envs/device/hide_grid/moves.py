"""What agents do, one after the other within a step: walk, push, climb, hold, carry and lock."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.hide_grid.plan import CELLS, FREE, RIM, STEPS, WALL, GridSizes

STAY, HOLD, LOCK = 0, 5, 6
"""Actions; 1 to 4 are steps up, down, left and right."""
NUM_ACTIONS = 7


@dataclass
class GridBoard:
    """What changes in a step. Arrays are turned: worlds are the last axis, so that what belongs to an agent lies together."""

    ground: Array
    """`[CELLS, E]`; this one never changes."""
    cells: list[Array]
    facing: list[Array]
    up: list[Array]
    holds: list[Array]
    """For each agent `[E]`: its cell, where it looks, whether it is up on a wall or block, and what it holds (0: nothing)."""
    things: Array
    locks: Array
    """The cells of blocks and ladder, and the team that locked each. `[N, E]`"""
    calm: Array
    """Where nobody is shoved, `[E]`: in preparation, in which seekers stand still."""


class Moves:
    """The rules of moves, for agents of `sizes`."""

    def __init__(self, sizes: GridSizes) -> None:
        self._blocks, self._teams = sizes.blocks, sizes.teams
        self._constants = Constants(
            steps=np.array([0, *STEPS, 0, 0]),
            ways=np.array(STEPS),
            numbers=np.arange(1, sizes.things + 1)[:, None],
        )

    def play(self, board: GridBoard, actions: Array) -> None:
        """All agents in their order; `actions` `[A, E]`."""
        for i in range(len(self._teams)):
            self._act(board, i, actions[i])

    def _act(self, b: GridBoard, i: int, action: Array) -> None:
        """One agent: first what its hands do, then its step. An action is one of the two, so their order does not matter."""
        constants, xp = self._constants.beside(action), module_of(action)
        step, free = constants["steps"][action], b.holds[i] == 0
        # who holds something goes on facing it, so that it can pull and slide
        b.facing[i] = xp.where((step != 0) & free, action - 1, b.facing[i])
        front = b.cells[i] + constants["ways"][b.facing[i]]
        held = self._held_by_others(b, i, constants["numbers"])
        taken = self._has_agent(b, front, i)
        mine = constants["numbers"] == b.holds[i]
        self._use_hands(b, i, action, (b.things == front) & ~held & ~b.up[i], taken, constants["numbers"])
        self._walk(b, i, step, free, front, taken, mine)

    def _use_hands(self, b: GridBoard, i: int, action: Array, ahead: Array, taken: Array, numbers: Array) -> None:
        """Hold what is `ahead` `[N, E]` and in nobody else's hands, if it is free and nobody stands on it; or let go. Lock
        what one holds, or unlock what is ahead."""
        xp, team = module_of(action), self._teams[i]
        turned = ahead & (action == LOCK) & ((numbers == b.holds[i]) | (b.locks == team))
        b.locks = xp.where(turned, team - b.locks, b.locks)
        found = (ahead & (b.locks == 0) & ~taken) * numbers
        after = xp.where(b.holds[i] == 0, found.sum(0), 0)
        after = xp.where(action == HOLD, after, b.holds[i])
        # nobody holds what is locked
        b.holds[i] = xp.where(turned.any(0), 0, after)

    def _walk(self, b: GridBoard, i: int, step: Array, free: Array, front: Array, taken: Array, mine: Array) -> None:
        """A step with free hands, with a push or a climb where something is in the way; or with what is held (`mine` `[N, E]`),
        which keeps its place beside the agent."""
        xp, moving = module_of(step), step != 0
        worlds = xp.arange(step.shape[0]) if xp is np else xp.arange(step.shape[0], device=step.device)
        to = b.cells[i] + step
        # one cell further than whatever is pushed or carried; out of the board only where the rim stops the agent anyway
        beyond = xp.clip(front + step, 0, CELLS - 1)
        ground, there = b.ground[to, worlds], (b.things == to) & ~mine
        floor = (b.ground[beyond, worlds] == FREE) & ~((b.things == beyond) & ~mine).any(0)
        somebody = self._has_agent(b, beyond, i)
        open_ = moving & ~self._has_agent(b, to, i)
        carries = open_ & ~free & (ground == FREE) & ~there.any(0) & floor & ~somebody & ~taken
        block = there[: self._blocks].any(0)
        high = b.up[i] | (b.things[self._blocks] == b.cells[i])
        walks = open_ & free & (ground != RIM)
        loose = walks & ~high & floor & (there & (b.locks == 0))[: self._blocks].any(0)
        behind = xp.clip(beyond + step, 0, CELLS - 1)
        shoves = loose & somebody & ~b.calm & (b.ground[behind, worlds] == FREE) & ~(b.things == behind).any(0)
        shoves = shoves & ~self._has_agent(b, behind, i)
        pushes = (loose & ~somebody) | shoves
        walks = walks & (high | ((ground == FREE) & (~block | pushes)))
        self._give_way(b, i, (shoves, beyond, behind), (there & pushes))
        b.things = xp.where((mine & carries) | (there & pushes), beyond, b.things)
        b.up[i] = xp.where(walks, (ground == WALL) | (block & high), b.up[i])
        b.cells[i] = xp.where(walks | carries, to, b.cells[i])

    def _give_way(self, b: GridBoard, i: int, shoved: tuple[Array, Array, Array], pushed: Array) -> None:
        """Others than agent `i` lose what is `pushed` `[N, E]` out of their hands; who is shoved goes one cell back, with empty
        hands."""
        where, cell, to = shoved
        xp, numbers = module_of(where), self._constants.beside(where)["numbers"]
        for j in range(len(b.cells)):
            if j != i:
                goes = where & (b.cells[j] == cell)
                b.holds[j] = xp.where(goes | (pushed & (numbers == b.holds[j])).any(0), 0, b.holds[j])
                b.cells[j] = xp.where(goes, to, b.cells[j])

    @staticmethod
    def _has_agent(b: GridBoard, cell: Array, i: int) -> Array:
        """Where somebody other than agent `i` is in `cell`."""
        found = cell < 0
        for j, other in enumerate(b.cells):
            if j != i:
                found = found | (other == cell)
        return found

    @staticmethod
    def _held_by_others(b: GridBoard, i: int, numbers: Array) -> Array:
        """What is in the hands of somebody other than agent `i`. `[N, E]`"""
        found = numbers < 0
        for j, held in enumerate(b.holds):
            if j != i:
                found = found | (held == numbers)
        return found
