"""Particles in the plane, as in the multi-agent particle environments: discs that are pushed and push each other away.

The physics are those of `mpe2` (package `mpe2`, `_mpe_utils/core.py`; Lowe et al. 2017, arXiv:1706.02275; Mordatch and Abbeel
2017, arXiv:1703.04908), in float32. In one step of length 0.1

    position += 0.1 velocity;    velocity = 0.75 velocity + 0.1 force

where the force is what an agent does, and for each disc that it touches `0.1 softplus((d_min - d) / 0.001)` along the line
between them. Coordinates are rows `[n, E]`, x of all bodies before y, so that an operation runs over all worlds at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from runnel.envs.device.arrays import Array, Constants, module_of

STEP, DAMPING, CONTACT_FORCE, CONTACT_MARGIN = 0.1, 0.25, 100.0, 1e-3
MOVES = ((0.0, 0.0), (-1.0, 0.0), (1.0, 0.0), (0.0, -1.0), (0.0, 1.0))
"""Nothing, left, right, down, up."""
NUM_MOVES = len(MOVES)


NOTHING = -1
"""The column that is always zero."""


class Sight:
    """What agents see as differences of two columns of a state, which is one product with a constant matrix: each number is a
    sum of two terms and of zeros, so it is exact. `plans` has, for each agent, pairs of columns (`NOTHING`: zero)."""

    def __init__(self, width: int, plans: Sequence[Sequence[tuple[int, int]]]) -> None:
        self.shape = len(plans), len(plans[0])
        matrix = np.zeros((width, len(plans), len(plans[0])), np.float32)
        for agent, plan in enumerate(plans):
            for k, (plus, minus) in enumerate(plan):
                if plus != NOTHING:
                    matrix[plus, agent, k] += 1.0
                if minus != NOTHING:
                    matrix[minus, agent, k] -= 1.0
        self._constants = Constants(matrix=matrix.reshape(width, -1))

    def of(self, state: Array) -> Array:
        """From states `[E, n]`. `[E, A, d]`"""
        return (state @ self._constants.beside(state)["matrix"]).reshape(len(state), *self.shape)


class Plane:
    """Bodies in the plane: `num_agents` that move, then `num_landmarks` that stay. A state is one array `[E, n]`.

    Its columns are the x of all bodies, their y, then the x of all agents' velocities and their y. `sizes` are those of all
    bodies, `touching` says which of them push others away.
    """

    def __init__(self, num_agents: int, num_landmarks: int, *, sizes: list[float], touching: list[bool]) -> None:
        self.num_agents, self.num_bodies = num_agents, num_agents + num_landmarks
        self.width = 2 * self.num_bodies + 2 * num_agents
        pairs = [(i, j) for i in range(num_agents) for j in range(i + 1, self.num_bodies) if touching[i] and touching[j]]
        self.touches = bool(pairs)
        pushed = np.zeros((num_agents, len(pairs)), np.float32)
        for k, (i, j) in enumerate(pairs):
            pushed[i, k] = 1.0
            if j < num_agents:
                pushed[j, k] = -1.0
        self._constants = Constants(
            first=np.array([i for i, _ in pairs], np.int64),
            second=np.array([j for _, j in pairs], np.int64),
            least=np.array([[sizes[i] + sizes[j]] for i, j in pairs], np.float32),
            pushed=pushed,
            moves=np.array(MOVES, np.float32),
        )

    def place_of(self, body: int) -> tuple[int, int]:
        """The columns of a body's position."""
        return body, self.num_bodies + body

    def speed_of(self, agent: int) -> tuple[int, int]:
        """The columns of an agent's velocity."""
        return 2 * self.num_bodies + agent, 2 * self.num_bodies + self.num_agents + agent

    def sight(self, agent: int, bodies: Sequence[int], *, speeds: Sequence[int] = ()) -> list[tuple[int, int]]:
        """What an agent sees of others: where `bodies` are, from where it is, and the velocities of `speeds` (`Sight`)."""
        here = self.place_of(agent)
        places = [(there, mine) for body in bodies for there, mine in zip(self.place_of(body), here, strict=True)]
        return places + [(column, NOTHING) for other in speeds for column in self.speed_of(other)]

    def own(self, agent: int) -> list[tuple[int, int]]:
        """Its velocity and its position, as it sees them."""
        return [(column, NOTHING) for column in (*self.speed_of(agent), *self.place_of(agent))]

    def positions(self, rows: Array) -> Array:
        """Of all bodies, from the rows `[n, E]` of a state. `[2, N, E]`"""
        return rows[: 2 * self.num_bodies].reshape(2, self.num_bodies, -1)

    def velocities(self, rows: Array) -> Array:
        """Of all agents. `[2, A, E]`"""
        return rows[2 * self.num_bodies :].reshape(2, self.num_agents, -1)

    def place(self, positions: Array) -> Array:
        """A state of bodies at rest, from positions `[E, 2, N]`. `[E, n]`"""
        still = positions.new_zeros(len(positions), 2 * self.num_agents)
        return torch.cat([positions.flatten(1), still], dim=1)

    def pushes(self, moves: Array, strength: Array) -> Array:
        """The forces of moves `[E, A]` (`MOVES`) times `strength` (a number or `[A, 1]`). `[2, A, E]`"""
        return self._constants.beside(moves)["moves"].T[:, moves.T] * strength

    def contacts(self, positions: Array) -> Array:
        """The forces `[2, A, E]` by which bodies push agents away from them."""
        constants, xp = self._constants.beside(positions), module_of(positions)
        apart = _take(positions, constants["first"]) - _take(positions, constants["second"])
        distance = xp.sqrt(apart[0] * apart[0] + apart[1] * apart[1])
        depth = (constants["least"] - distance) / CONTACT_MARGIN
        # softplus, in operations that numpy has vectorised
        depth = xp.log(xp.exp(-abs(depth)) + 1.0) + xp.clip(depth, 0.0, None)
        strength = depth * (CONTACT_FORCE * CONTACT_MARGIN) / xp.clip(distance, 1e-8, None)
        return xp.matmul(constants["pushed"], apart * strength)

    def step(self, rows: Array, force: Array, max_speed: Array | None = None) -> Array:
        """The rows `[n, E]` of a state after a step under `force` `[2, A, E]`; speeds above `max_speed` `[A, 1]` are cut."""
        xp, found = module_of(rows), module_of(rows).empty_like(rows)
        before, velocity = self.positions(rows), self.velocities(rows)
        if self.touches:
            force = force + self.contacts(before)
        after, n = self.positions(found), self.num_agents
        after[:, :n] = before[:, :n] + velocity * STEP
        after[:, n:] = before[:, n:]
        velocity = velocity * (1.0 - DAMPING) + force * STEP
        if max_speed is not None:
            speed = xp.sqrt(velocity[0] * velocity[0] + velocity[1] * velocity[1])
            velocity = velocity * (max_speed / xp.maximum(speed, max_speed))
        self.velocities(found)[...] = velocity
        return found


def _take(positions: Array, bodies: Array) -> Array:
    """The positions of some bodies, of `[2, N, E]`."""
    return positions.index_select(1, bodies) if isinstance(positions, Tensor) else np.take(positions, bodies, axis=1)
