"""Pendulum on tensors."""

from __future__ import annotations

import math

import torch

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.device.arrays import Array, Filled, columns, module_of, plus, plus_product
from runnel.envs.device.base import ArrayEnv, Leaves


class Pendulum(ArrayEnv):
    """Gymnasium's Pendulum-v1: swing up and hold, with a torque in [-2, 2]. The angle 0 points up.

    reward = -(angle^2 + speed^2 / 10 + torque^2 / 1000)
    speed' = clip(speed + (3 g / 2l sin(angle) + 3 torque / m l^2) dt, -8, 8),  angle' = angle + speed' dt
    """

    name = "tensor:Pendulum-v1"
    max_steps = 200
    gravity, mass, length, dt, max_speed, max_torque = 10.0, 1.0, 1.0, 0.05, 8.0, 2.0

    def __init__(self) -> None:
        box = ActionSpec("continuous", (1,), low=(-self.max_torque,), high=(self.max_torque,))
        self.spec = EnvSpec({"obs": ArraySpec((3,))}, box)
        self._never = Filled(0.0)

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        x = torch.empty(num, 2, device=generator.device).uniform_(-1.0, 1.0, generator=generator)
        return Batch(angle=x[:, 0] * math.pi, speed=x[:, 1].clone())

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        angle, speed = state["angle"], state["speed"]
        xp = module_of(angle)
        torque = xp.clip(action[:, 0], -self.max_torque, self.max_torque)
        turned = xp.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
        cost = plus_product(plus_product(turned * turned, speed, speed, 0.1), torque, torque, 0.001)
        pull = 3.0 * self.gravity / (2.0 * self.length) * self.dt
        faster = plus(plus(speed, xp.sin(angle), pull), torque, 3.0 / (self.mass * self.length**2) * self.dt)
        faster = xp.clip(faster, -self.max_speed, self.max_speed)
        return {"angle": plus(angle, faster, self.dt), "speed": faster}, -cost, self._never.like(angle) > 0.0

    def observe(self, state: Leaves) -> Leaves:
        xp = module_of(state["angle"])
        return {"obs": columns(xp.cos(state["angle"]), xp.sin(state["angle"]), state["speed"])}
