"""Two agents with continuous actions that are paid for meeting, as tensors: the smallest team for `masac`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runnel.core.errors import ConfigError
from runnel.core.records import Batch
from runnel.core.spaces import ActionSpec, ArraySpec, EnvSpec, TeamSpec
from runnel.envs.device.arrays import Array, Constants, module_of
from runnel.envs.device.base import ArrayEnv, Leaves
from runnel.envs.device.team import TeamWorld

STEP = 0.2


class Meeting(TeamWorld, ArrayEnv):
    """`left` and `right` stand at random on a line from -1 to 1, and move up to 0.2 a step, for `max_cycles` steps. Both get,
    at each step, minus the square of their distance, and minus what their moves cost: `cost` times the sum of their squares.

    Observation: where the agent itself is, and where the other is. Action: how far to move, from -1 to 1, times 0.2.
    """

    name = "tensor:Meeting"

    def __init__(self, max_cycles: int = 8, cost: float = 0.05) -> None:
        if max_cycles < 1:
            raise ConfigError("env_kwargs.max_cycles", max_cycles, "use at least one step")
        if not cost >= 0.0:
            raise ConfigError("env_kwargs.cost", cost, "use 0 or more")
        self.max_steps, self._cost = max_cycles, float(cost)
        box = ActionSpec("continuous", shape=(1,), low=(-1.0,), high=(1.0,))
        agent = EnvSpec({"obs": ArraySpec((2,))}, box)
        self.spec = TeamSpec({"left": agent, "right": agent})
        self._constants = Constants(never=torch.zeros(1, 2, dtype=torch.bool).numpy())

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        return Batch(place=torch.empty(num, 2, device=generator.device).uniform_(-1.0, 1.0, generator=generator))

    def transition(self, state: Leaves, actions: Sequence[Array]) -> tuple[Leaves, Array, Array]:
        xp, move = module_of(state["place"]), actions[0][..., 0]
        move = xp.clip(move, -1.0, 1.0)
        place = state["place"] + move * STEP
        apart = place[:, 0] - place[:, 1]
        paid = -(apart * apart) - (move * move).sum(1) * self._cost
        never = self._constants.beside(place)["never"]
        return {"place": place}, xp.broadcast_to(paid[:, None], place.shape), xp.broadcast_to(never, place.shape)

    def observe(self, state: Leaves) -> Sequence[Leaves]:
        place = state["place"]
        xp = module_of(place)
        return [{"obs": xp.stack([place, xp.flip(place, (1,))], -1)}]
