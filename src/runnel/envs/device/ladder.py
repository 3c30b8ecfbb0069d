"""A ladder on tensors: a task is how high it is, and whether it can be climbed at all."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TaskSpace
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves


class Ladder(ArrayEnv):
    """Climb a ladder: at each rung one of four moves leads up, always the same one; any other is a fall and ends the episode.
    Each rung pays its part of the height, so the way to the top pays 1.

    A task is two numbers in [0, 1]. The first is the height, from one rung to `rungs`. A ladder whose second number is above
    `firm` breaks at the first move, whatever it is: it teaches nothing. Observation: the rung as one of `rungs`, the height,
    and whether the ladder is firm.
    """

    name = "tensor:Ladder"
    max_steps = 0

    def __init__(self, rungs: int = 16, firm: float = 0.5) -> None:
        if rungs < 1:
            raise ConfigError("env_kwargs.rungs", rungs, "use at least 1")
        if not 0.0 <= firm <= 1.0:
            raise ConfigError("env_kwargs.firm", firm, "use a number in [0, 1]")
        self._rungs, self._firm = rungs, firm
        tasks = TaskSpace((0.0, 0.0), (1.0, 1.0))
        self.spec = EnvSpec({"obs": ArraySpec((rungs + 2,))}, ActionSpec("discrete", num_actions=4), tasks=tasks)
        self._constants = Constants(
            move=(np.arange(rungs) * 7 + 3) // 2 % 4,
            shown=np.concatenate([np.eye(rungs), np.zeros((rungs, 2))], axis=1).astype(np.float32),
            height=np.eye(rungs + 2)[rungs].astype(np.float32),
            is_firm=np.eye(rungs + 2)[rungs + 1].astype(np.float32),
        )

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return self.initial_of(torch.rand(num, 2, generator=generator, device=generator.device), generator)

    def initial_of(self, tasks: Tensor, generator: torch.Generator) -> Batch:
        height = (tasks[:, 0] * self._rungs).long().clamp(max=self._rungs - 1) + 1
        rung = torch.zeros_like(height)
        return Batch(rung=rung, height=height, firm=tasks[:, 1] <= self._firm)

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        xp, constants = module_of(action), self._constants.beside(action)
        wanted = constants["move"][state["rung"]]
        up = (action == wanted) & state["firm"]
        rung = state["rung"] + up
        top = rung >= state["height"]
        reward = up / state["height"]
        reward = reward.astype(np.float32) if xp is np else reward.float()
        last = self._rungs - 1
        following = {**state, "rung": xp.clip(rung, 0, last)}
        return following, reward, top | ~up

    def observe(self, state: Leaves) -> Leaves:
        constants = self._constants.beside(state["rung"])
        height, firm = state["height"] / self._rungs, state["firm"] * 1.0
        shown = constants["shown"][state["rung"]] + height[:, None] * constants["height"] + firm[:, None] * constants["is_firm"]
        return {"obs": shown.astype(np.float32) if module_of(state["rung"]) is np else shown.float()}
