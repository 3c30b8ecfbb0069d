"""Agents that share out landmarks, on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.particles import NOTHING, NUM_MOVES, Plane, Sight
from runnel.envs.device.team import TeamWorld

SIZE, FORCE = 0.15, 5.0


class Spread(TeamWorld, ArrayEnv):
    """`simple_spread_v3` of mpe2 (Lowe et al. 2017, arXiv:1706.02275), with discrete actions: `N` agents are to cover `N`
    landmarks without bumping into each other, in `max_cycles` steps.

    An agent does nothing or pushes itself left, right, down or up. It sees its velocity, its position, all landmarks and all
    other agents from where it is, and what they say, which is nothing (zeros). With distances d after the step, agent i is paid

        (1 - local_ratio) (- sum over landmarks of min over agents d)  -  local_ratio (number of agents that i touches)

    The global state is what all agents see, joined, as `state()` of mpe2.
    """

    name = "tensor:Spread"

    def __init__(self, N: int = 3, local_ratio: float = 0.5, max_cycles: int = 25) -> None:
        if N < 1:
            raise ConfigError("env_kwargs.N", N, "use at least one agent")
        if not 0.0 <= local_ratio <= 1.0:
            raise ConfigError("env_kwargs.local_ratio", local_ratio, "it is a share, from 0 to 1")
        if max_cycles < 1:
            raise ConfigError("env_kwargs.max_cycles", max_cycles, "use at least one step")
        self.max_steps, self._num, self._local = max_cycles, N, local_ratio
        self._plane = Plane(N, N, sizes=[SIZE] * N + [0.05] * N, touching=[True] * N + [False] * N)
        others = [[j for j in range(N) if j != i] for i in range(N)]
        nothing = [(NOTHING, NOTHING)] * 2 * (N - 1)
        see = [self._plane.own(i) + self._plane.sight(i, [*range(N, 2 * N), *others[i]]) + nothing for i in range(N)]
        self._sight = Sight(self._plane.width, see)
        agent = EnvSpec({"obs": ArraySpec((len(see[0]),))}, ActionSpec("discrete", num_actions=NUM_MOVES))
        self.spec = TeamSpec({f"agent_{i}": agent for i in range(N)})
        self.state_spec = ArraySpec((N * len(see[0]),))
        self._constants = Constants(itself=np.eye(N, dtype=bool)[:, :, None], never=np.zeros((1, N), bool))

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        places = torch.empty(num, 2, 2 * self._num, device=generator.device).uniform_(-1.0, 1.0, generator=generator)
        return Batch(bodies=self._plane.place(places))

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        rows = self._plane.step(state["bodies"].T, self._plane.pushes(actions[0], FORCE))
        reward = self._rewards(self._plane.positions(rows)).T
        constants, xp = self._constants.beside(rows), module_of(rows)
        return {"bodies": rows.T}, reward, xp.broadcast_to(constants["never"], reward.shape)

    def _rewards(self, positions: Array) -> Array:
        """What each agent is paid for being there. `[A, E]`"""
        n, xp = self._num, module_of(positions)
        agents, landmarks = positions[:, :n], positions[:, n:]
        apart = agents[:, :, None] - landmarks[:, None]
        nearest = xp.amin(apart[0] * apart[0] + apart[1] * apart[1], 0)
        team = xp.sqrt(nearest).sum(0) * (self._local - 1.0)
        apart = agents[:, :, None] - agents[:, None]
        close = (apart[0] * apart[0] + apart[1] * apart[1]) < (2 * SIZE) ** 2
        close = close & ~self._constants.beside(positions)["itself"]
        return team - close.sum(1, dtype=xp.float32) * self._local

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [{"obs": self._sight.of(state["bodies"])}]

    def global_state(self, state: Leaves) -> Array:
        return self._sight.of(state["bodies"]).reshape(len(state["bodies"]), -1)
