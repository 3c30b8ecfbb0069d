"""A goal beyond a hazard, on tensors: the shortest way earns most and costs most."""

from __future__ import annotations

import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, Channels, EnvSpec
from runnel.envs.device.arrays import Array, columns, module_of
from runnel.envs.device.base import ArrayEnv, Leaves


class GoalBeyondHazard(ArrayEnv):
    """Go to a goal, and round a hazard in the middle of the way.

    A point starts at (-1, y) with y even in [-0.2, 0.2] and moves by 0.1 times its action, which is cut to length 1. The goal
    at (1, 0) has a radius of 0.2 and ends the episode. A step earns five times the distance that it gained, minus 0.1. A step
    that ends within `radius` of (0, 0.2) costs 1 (`costs/hazard`).

    The straight way has 13 steps in the hazard and returns 7.6 on average; the way round it has none and returns 7.1
    (`tests/unit/envs/test_hazard.py` plays both). Observation: the place of the point.
    """

    name = "tensor:GoalBeyondHazard"
    max_steps = 60
    speed, goal_radius, gain, step_cost = 0.1, 0.2, 5.0, 0.1

    def __init__(self, radius: float = 0.7) -> None:
        if not 0.0 < radius < 0.8:
            raise ConfigError("env_kwargs.radius", radius, "use one between 0 and 0.8: start and goal lie outside")
        self.radius = radius
        box = ActionSpec("continuous", (2,), low=(-1.0, -1.0), high=(1.0, 1.0))
        self.spec = EnvSpec({"obs": ArraySpec((2,))}, box, channels=Channels(costs=("hazard",)))

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        y = torch.empty(num, device=generator.device).uniform_(-0.2, 0.2, generator=generator)
        return Batch({"x": torch.full_like(y, -1.0), "y": y, "costs/hazard": torch.zeros_like(y)})

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        x, y = state["x"], state["y"]
        xp = module_of(x)
        length = xp.sqrt(action[:, 0] ** 2 + action[:, 1] ** 2)
        scale = self.speed / xp.clip(length, 1.0, None)
        to_x, to_y = x + scale * action[:, 0], y + scale * action[:, 1]
        before, after = (xp.sqrt((at_x - 1.0) ** 2 + at_y**2) for at_x, at_y in ((x, y), (to_x, to_y)))
        inside = xp.sqrt(to_x**2 + (to_y - 0.2) ** 2) < self.radius
        cost = xp.where(inside, xp.ones_like(x), xp.zeros_like(x))
        reward = self.gain * (before - after) - self.step_cost
        return {"x": to_x, "y": to_y, "costs/hazard": cost}, reward, after < self.goal_radius

    def observe(self, state: Leaves) -> Leaves:
        return {"obs": columns(state["x"], state["y"])}
