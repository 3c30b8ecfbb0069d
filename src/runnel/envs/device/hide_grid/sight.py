"""Who sees what: a cone of 135 degrees, and lines between the middles of cells that walls and blocks cut."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.hide_grid.plan import CELLS, STEPS, WIDTH, WORDS, GridSizes, bits

HALF_CONE = math.radians(67.5)


class GridSight:
    """Lines and cones of all pairs of cells, as tables."""

    def __init__(self, sizes: GridSizes) -> None:
        self._blocks = sizes.blocks
        self._constants = Constants(lines=lines(), cones=cones(), bits=bits(), low=np.zeros((sizes.things, 1), bool))

    def of(self, words: Array, agents: Array, facing: Array, up: Array, things: Array) -> Array:
        """Whether each agent sees each agent, then each thing `[A, A + N, E]`, by cells of agents `[A, E]` and of things
        `[N, E]`, and walls as bits `[WORDS, E]`.

        Blocks and walls hide what is on the ground; who is up sees over them, and is seen over them.
        """
        xp, constants = module_of(agents), self._constants.beside(agents)
        targets = xp.concatenate((agents, things))
        pair = agents[:, None] * CELLS + targets[None]
        hidden = None
        for word in range(WORDS):
            solid = words[word]
            for k in range(self._blocks):
                solid = solid | constants["bits"][word][things[k]]
            crossed = constants["lines"][word][pair] & solid
            hidden = crossed if hidden is None else hidden | crossed
        low = xp.broadcast_to(constants["low"], things.shape)
        above = up[:, None] | xp.concatenate((up, low))[None]
        return constants["cones"][facing[:, None] * (CELLS * CELLS) + pair] & ((hidden == 0) | above)


@cache
def lines() -> np.ndarray:
    """The cells between each two cells, as bits: those into whose inside the line between the middles goes, but for the two
    themselves. `[WORDS, CELLS * CELLS]`"""
    of_cells, found = bits(), np.zeros((WORDS, CELLS, CELLS), np.int64)
    row, column = np.divmod(np.arange(CELLS), WIDTH)
    dr, dc = row[None] - row[:, None], column[None] - column[:, None]
    for r in range(WIDTH):
        for c in range(WIDTH):
            # all in halves of cells, so whole numbers: the line from a to b enters the cell if corners lie on both sides of it
            sides = [dc * (2 * (r - row)[:, None] + y) - dr * (2 * (c - column)[:, None] + x) for y in (-1, 1) for x in (-1, 1)]
            crosses = (np.max(sides, axis=0) > 0) & (np.min(sides, axis=0) < 0)
            between = (np.minimum(row[:, None], row[None]) <= r) & (r <= np.maximum(row[:, None], row[None]))
            between &= (np.minimum(column[:, None], column[None]) <= c) & (c <= np.maximum(column[:, None], column[None]))
            cell = r * WIDTH + c
            crosses &= between
            crosses[cell], crosses[:, cell] = False, False
            found += crosses[None] * of_cells[:, cell, None, None]
    return found.reshape(WORDS, -1)


@cache
def cones() -> np.ndarray:
    """Whether a cell is within 67.5 degrees of where one looks; one's own cell always is. `[4 * CELLS * CELLS]`"""
    row, column = np.divmod(np.arange(CELLS), WIDTH)
    dr, dc = row[None] - row[:, None], column[None] - column[:, None]
    far = np.hypot(dr, dc)
    ahead = [(-dr, dr, -dc, dc)[way] for way in range(len(STEPS))]
    return np.stack([(x >= math.cos(HALF_CONE) * far - 1e-9) for x in ahead]).reshape(-1)
