"""MountainCar on tensors, with three actions or a continuous one."""

from __future__ import annotations

import numpy as np
import torch

from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec
from runnel.envs.device.arrays import Array, Constants, Filled, columns, module_of, plus
from runnel.envs.device.base import ArrayEnv, Leaves

_GRAVITY, _MAX_SPEED, _LEFT, _RIGHT = 0.0025, 0.07, -1.2, 0.6


def _drive(state: Leaves, push: Array) -> tuple[Array, Array]:
    """Place and speed after `push` (an acceleration, `[B]`); the car stops dead at the left wall."""
    place, speed = state["state"][:, 0], state["state"][:, 1]
    xp = module_of(place)
    speed = xp.clip(plus(speed + push, xp.cos(place * 3.0), -_GRAVITY), -_MAX_SPEED, _MAX_SPEED)
    place = xp.clip(place + speed, _LEFT, _RIGHT)
    return place, xp.where((place <= _LEFT) & (speed < 0.0), 0.0, speed)


def _start(num: int, generator: torch.Generator) -> Batch:
    place = torch.empty(num, device=generator.device).uniform_(-0.6, -0.4, generator=generator)
    return Batch(state=torch.stack((place, torch.zeros_like(place)), dim=1))


class MountainCar(ArrayEnv):
    """Gymnasium's MountainCar-v0 (Moore 1990): push left, not at all or right; -1 a step until the flag at 0.5."""

    name = "tensor:MountainCar-v0"
    max_steps = 200
    force, goal = 0.001, 0.5

    def __init__(self) -> None:
        self.spec = EnvSpec({"obs": ArraySpec((2,))}, ActionSpec("discrete", num_actions=3))
        self._constants = Constants(push=np.array([-self.force, 0.0, self.force], np.float32))
        self._reward = Filled(-1.0)

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return _start(num, generator)

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        push = self._constants.beside(action)["push"][action]
        place, speed = _drive(state, push)
        return {"state": columns(place, speed)}, self._reward.like(place), (place >= self.goal) & (speed >= 0.0)

    def observe(self, state: Leaves) -> Leaves:
        return {"obs": state["state"]}


class MountainCarContinuous(ArrayEnv):
    """Gymnasium's MountainCarContinuous-v0: a push in [-1, 1] costs its square / 10, and the flag at 0.45 pays 100."""

    name = "tensor:MountainCarContinuous-v0"
    max_steps = 999
    power, goal = 0.0015, 0.45

    def __init__(self) -> None:
        box = ActionSpec("continuous", (1,), low=(-1.0,), high=(1.0,))
        self.spec = EnvSpec({"obs": ArraySpec((2,))}, box)

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return _start(num, generator)

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        push = module_of(action).clip(action[:, 0], -1.0, 1.0)
        place, speed = _drive(state, push * self.power)
        there = (place >= self.goal) & (speed >= 0.0)
        return {"state": columns(place, speed)}, plus(push * push * -0.1, there, 100.0), there

    def observe(self, state: Leaves) -> Leaves:
        return {"obs": state["state"]}
