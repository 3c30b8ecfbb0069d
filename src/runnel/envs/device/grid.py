"""A grid world on tensors: four rooms with doors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Up, down, left, right, as steps of row and column."""


class FourRooms(ArrayEnv):
    """Find the goal in four rooms (after Sutton, Precup and Singh 1999): a walled square of `size` x `size` cells, split by a
    wall along its middle row and one along its middle column, with a door in the middle of each half wall.

    Start and goal are two different free cells. A step costs 0.01; the goal pays 1 and ends the episode. A step into a wall
    has no effect. Observation: row and column of the agent and of the goal, scaled to [-1, 1], and whether each of the four
    neighbours is a wall.
    """

    name = "tensor:FourRooms"
    max_steps = 100

    def __init__(self, size: int = 9) -> None:
        if size < 5 or size % 2 == 0:
            raise ConfigError("env_kwargs.size", size, "use an odd number from 5 up: rooms of equal size around a middle wall")
        self.spec = EnvSpec({"obs": ArraySpec((8,))}, ActionSpec("discrete", num_actions=4))
        walls = rooms(size)
        cells = np.argwhere(~walls)
        number = np.full(walls.shape, -1)
        number[~walls] = np.arange(len(cells))
        beside = [cells + move for move in np.array(MOVES)]
        blocked = np.stack([walls[tuple(place.T)] for place in beside], axis=1)
        after = np.stack([number[tuple(place.T)] for place in beside], axis=1)
        after = np.where(blocked, np.arange(len(cells))[:, None], after)
        scaled = (cells * 2.0 / (size - 1) - 1.0).astype(np.float32)
        # the world as tables over free cells: a step and an observation are lookups, without a branch
        self._num_cells = len(cells)
        self._constants = Constants(
            after=after,
            agent=np.concatenate([scaled, np.zeros_like(scaled), blocked], axis=1).astype(np.float32),
            goal=np.concatenate([np.zeros_like(scaled), scaled, np.zeros_like(blocked)], axis=1).astype(np.float32),
            reward=np.array([-0.01, 1.0], np.float32),
        )

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        n = self._num_cells
        u = torch.rand(2, num, generator=generator, device=generator.device)
        # u * n may round up to n; the goal is 1 to n - 1 cells further, so it is never the start
        agent = (u[0] * n).long().clamp_(max=n - 1)
        further = (u[1] * (n - 1)).long().clamp_(max=n - 2) + 1
        return Batch(agent=agent, goal=(agent + further) % n)

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        xp, constants = module_of(action), self._constants.beside(action)
        agent = constants["after"][state["agent"], action]
        there = agent == state["goal"]
        reward = xp.where(there, constants["reward"][1], constants["reward"][0])
        return {"agent": agent, "goal": state["goal"]}, reward, there

    def observe(self, state: Leaves) -> Leaves:
        constants = self._constants.beside(state["agent"])
        return {"obs": constants["agent"][state["agent"]] + constants["goal"][state["goal"]]}


def rooms(size: int) -> NDArray[np.bool_]:
    """Where the walls are. `[size, size]`

    >>> print("\\n".join("".join(".#"[int(w)] for w in row) for row in rooms(7)))
    #######
    #..#..#
    #.....#
    ##.#.##
    #.....#
    #..#..#
    #######
    """
    walls = np.zeros((size, size), bool)
    middle = size // 2
    walls[[0, middle, -1]] = True
    walls[:, [0, middle, -1]] = True
    doors = ((middle + 1) // 2, middle + middle // 2)
    for door in doors:
        walls[middle, door] = walls[door, middle] = False
    return walls
