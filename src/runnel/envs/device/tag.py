"""Slower agents hunt faster ones, on tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.particles import NUM_MOVES, Plane, Sight
from runnel.envs.device.team import TeamWorld

SIZES = (0.075, 0.05, 0.2)
"""Of hunters, prey and obstacles."""
FORCES, SPEEDS = (3.0, 4.0), (1.0, 1.3)
"""Of hunters and prey: the force of a push, and the greatest speed."""
CAUGHT = 10.0


class Tag(TeamWorld, ArrayEnv):
    """`simple_tag_v3` of mpe2 (Lowe et al. 2017, arXiv:1706.02275), with discrete actions: `num_adversaries` hunters are paid
    for touching `num_good` faster agents, in `max_cycles` steps, among obstacles.

    All do nothing or push themselves left, right, down or up. An agent sees its velocity, its position, obstacles and all other
    agents from where it is, and the velocities of the other prey. If after a step n pairs of a hunter and a prey touch, n_i of
    them with prey i, which is at (x, y),

        each hunter is paid 10 n,  and prey i  -10 n_i - out(x) - out(y)
        out(x) = 0 where |x| < 0.9,  10 (|x| - 0.9) where |x| < 1,  else min(e^(2 |x| - 2), 10)

    The global state is what all agents see, joined, as `state()` of mpe2.
    """

    name = "tensor:Tag"

    def __init__(self, num_good: int = 1, num_adversaries: int = 3, num_obstacles: int = 2, max_cycles: int = 25) -> None:
        for field, value, least in (
            ("num_good", num_good, 1),
            ("num_adversaries", num_adversaries, 1),
            ("num_obstacles", num_obstacles, 0),
            ("max_cycles", max_cycles, 1),
        ):
            if value < least:
                raise ConfigError(f"env_kwargs.{field}", value, f"use at least {least}")
        self.max_steps, self._hunters, self._prey = max_cycles, num_adversaries, num_good
        counts, num = (num_adversaries, num_good, num_obstacles), num_adversaries + num_good
        sizes = [size for size, many in zip(SIZES, counts, strict=True) for _ in range(many)]
        self._plane = Plane(num, num_obstacles, sizes=sizes, touching=[True] * len(sizes))
        self._sights = [Sight(self._plane.width, [self._sees(i) for i in kind]) for kind in self._kinds]
        agents = {f"adversary_{i}": self._agent(0) for i in range(num_adversaries)}
        self.spec = TeamSpec(agents | {f"agent_{i}": self._agent(1) for i in range(num_good)})
        self.state_spec = ArraySpec((sum(many * width for many, width in (sight.shape for sight in self._sights)),))
        by_kind = [[FORCES[k], SPEEDS[k]] for k, kind in enumerate(self._kinds) for _ in kind]
        force, speed = np.array(by_kind, np.float32).T[..., None]
        reach = [0.9 if i >= num else 1.0 for i in range(len(sizes))] * 2
        self._constants = Constants(force=force, speed=speed, never=np.zeros((1, num), bool), reach=np.array(reach, np.float32))

    @property
    def _kinds(self) -> tuple[range, range]:
        """The numbers of the hunters, and of the prey."""
        return range(self._hunters), range(self._hunters, self._hunters + self._prey)

    def _sees(self, i: int) -> list[tuple[int, int]]:
        plane, others = self._plane, [j for j in range(self._plane.num_agents) if j != i]
        bodies = [*range(plane.num_agents, plane.num_bodies), *others]
        return plane.own(i) + plane.sight(i, bodies, speeds=[j for j in others if j in self._kinds[1]])

    def _agent(self, kind: int) -> EnvSpec:
        return EnvSpec({"obs": ArraySpec((self._sights[kind].shape[1],))}, ActionSpec("discrete", num_actions=NUM_MOVES))

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        drawn = torch.empty(num, 2 * self._plane.num_bodies, device=generator.device).uniform_(-1.0, 1.0, generator=generator)
        # obstacles lie a little further inside
        places = drawn * self._constants.beside(drawn)["reach"]
        return Batch(bodies=self._plane.place(places.view(num, 2, -1)))

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        constants, xp = self._constants.beside(state["bodies"]), module_of(state["bodies"])
        force = self._plane.pushes(xp.concatenate(tuple(actions), 1), constants["force"])
        rows = self._plane.step(state["bodies"].T, force, constants["speed"])
        reward = self._rewards(self._plane.positions(rows)).T
        return {"bodies": rows.T}, reward, xp.broadcast_to(constants["never"], reward.shape)

    def _rewards(self, positions: Array) -> Array:
        """What each agent is paid for being there. `[A, E]`"""
        n, xp = self._hunters, module_of(positions)
        hunters, prey = positions[:, :n], positions[:, n : n + self._prey]
        apart = hunters[:, :, None] - prey[:, None]
        distance = xp.sqrt(apart[0] * apart[0] + apart[1] * apart[1])
        caught = (distance < SIZES[0] + SIZES[1]).sum(0, dtype=xp.float32) * CAUGHT
        beyond = abs(prey)
        # e^(2 |x| - 2) is above 10 from |x| = 2.2 on
        outside = xp.clip(xp.exp(xp.clip(beyond, 0.0, 3.0) * 2.0 - 2.0), 0.0, 10.0)
        outside = xp.where(beyond < 1.0, xp.clip(beyond - 0.9, 0.0, None) * 10.0, outside)
        paid = xp.broadcast_to(caught.sum(0)[None], (n, caught.shape[1]))
        return xp.concatenate((paid, -caught - outside.sum(0)))

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        return [{"obs": sight.of(state["bodies"])} for sight in self._sights]

    def global_state(self, state: Leaves) -> Array:
        bodies = state["bodies"]
        return module_of(bodies).concatenate([sight.of(bodies).reshape(len(bodies), -1) for sight in self._sights], 1)
