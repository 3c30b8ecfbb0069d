"""CartPole on tensors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.device.arrays import Array, Constants, Filled, beyond, columns, module_of, plus, plus_product
from runnel.envs.device.base import ArrayEnv, Leaves


class CartPole(ArrayEnv):
    """Gymnasium's CartPole-v1 (Barto, Sutton and Anderson 1983; Euler steps), in float32.

    With sine and cosine of the pole's angle, everything divided by the total mass M, and m the pole's share of mass times
    half its length l:

        push  = (F + m spin^2 sin) / M
        turn  = (sin - push cos / g) / ((4/3 l - m cos^2 / M) / g)
        drive = push - m turn cos / M
    """

    name = "tensor:CartPole-v1"
    max_steps = 500
    gravity, pole_mass, total_mass, half_length, force, tau = 9.8, 0.1, 1.1, 0.5, 10.0, 0.02
    x_limit, angle_limit = 2.4, 12 * 2 * math.pi / 360

    def __init__(self) -> None:
        self.spec = EnvSpec({"obs": ArraySpec((4,))}, ActionSpec("discrete", num_actions=2))
        self._share = self.pole_mass * self.half_length / self.total_mass
        force = self.force / self.total_mass
        self._constants = Constants(
            force=np.array([-force, force], np.float32),
            inertia=np.float32(self.half_length * 4.0 / 3.0 / self.gravity),
            limits=np.array([self.x_limit, self.angle_limit], np.float32),
        )
        self._reward = Filled(1.0)

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        state = torch.empty(num, 4, device=generator.device)
        return Batch(state=state.uniform_(-0.05, 0.05, generator=generator))

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        # products are arranged so that each line is one kernel on a device (`arrays.py`)
        now = state["state"]
        constants, xp = self._constants.beside(now), module_of(now)
        angle, spin = now[:, 2], now[:, 3]
        sin, cos = xp.sin(angle), xp.cos(angle)
        push = plus_product(constants["force"][action], spin * spin, sin, self._share)
        fall = plus_product(sin, cos, push, -1.0 / self.gravity)
        turn = fall / plus_product(constants["inertia"], cos, cos, -self._share / self.gravity)
        drive = plus_product(push, turn, cos, -self._share)
        following = plus(now, columns(now[:, 1], drive, spin, turn), self.tau)
        return {"state": following}, self._reward.like(sin), self._outside(following, constants["limits"])

    def _outside(self, state: Array, limits: Array) -> Array:
        if isinstance(state, Tensor):  # both limits in one comparison: two kernels less
            far = state[:, 0::2].abs() > limits
            return far[:, 0] | far[:, 1]
        return beyond(state[:, 0], self.x_limit) | beyond(state[:, 2], self.angle_limit)

    def observe(self, state: Leaves) -> Leaves:
        return {"obs": state["state"]}
