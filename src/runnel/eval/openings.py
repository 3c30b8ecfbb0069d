"""Games that begin with random steps: players who never draw would else play one game again and again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.rng import make_rng
from runnel.core.state import Array, State
from runnel.envs.team.contract import TeamVector
from runnel.envs.vector import Episode, Fault
from runnel.eval.players import random_actions


class RandomOpenings:
    """A `TeamVector` in which the first `num` steps of each episode are random, whatever the players say.

    An opening depends on the seed, the environment and the number of its episode alone. So the episodes of two seatings begin
    with the same moves.
    """

    def __init__(self, vector: TeamVector, num: int) -> None:
        if num < 1:
            raise ConfigError("openings", num, "use at least one random step, or none at all")
        self._vector, self._num, self._seed = vector, num, 0
        self.name, self.num_envs, self.index0 = vector.name, vector.num_envs, vector.index0
        self.sides, self.outs = vector.sides, vector.outs
        self._width = sum(side.spec.action.noise_size * len(side.agents) for side in vector.sides.values())
        self._episode, self._age = [0] * self.num_envs, np.zeros(self.num_envs, np.int64)
        self._noise = np.zeros((self.num_envs, num, self._width))
        self._begin(range(self.num_envs))

    def _begin(self, envs: Iterable[int]) -> None:
        """Draw the openings of the next episode of some environments."""
        for env in envs:
            self._age[env] = 0
            self._noise[env] = make_rng(self._seed, "opening", env, self._episode[env]).random(self._noise[env].shape)
            self._episode[env] += 1

    def reset(self, seed: int | None = None) -> None:
        self._seed = self._seed if seed is None else seed
        self._vector.reset(seed)
        self._episode = [0] * self.num_envs
        self._begin(range(self.num_envs))

    def ready(self) -> bool:
        return self._vector.ready()

    def recv(self) -> None:
        self._vector.recv()

    def send(self, actions: Mapping[str, Tensor]) -> None:
        opening = self._age < self._num
        self._age += 1
        self._vector.send(self._opened(actions, opening) if opening.any() else actions)

    def _opened(self, actions: Mapping[str, Tensor], opening: Array) -> dict[str, Tensor]:
        """The actions, with random ones where an episode has just begun."""
        step, column, found = np.minimum(self._age - 1, self._num - 1), 0, {}
        noise = self._noise[np.arange(self.num_envs), step]
        for policy, side in self.sides.items():
            spec, num_agents = side.spec.action, len(side.agents)
            width = spec.noise_size * num_agents
            own = noise[:, column : column + width].reshape(self.num_envs * num_agents, -1)
            column += width
            mask = self.outs[policy].action_mask
            drawn = torch.from_numpy(random_actions(spec, own, None if mask is None else mask.cpu().numpy()))
            given = actions[policy]
            chosen = torch.from_numpy(np.repeat(opening, num_agents)).view(-1, *[1] * (given.dim() - 1))
            found[policy] = torch.where(chosen.to(given.device), drawn.to(given), given)
        return found

    def episodes(self) -> list[Episode]:
        ended = self._vector.episodes()
        self._begin([episode.env - self.index0 for episode in ended])
        return ended

    def faults(self) -> list[Fault]:
        return self._vector.faults()

    def snapshot(self) -> State:
        return self._vector.snapshot()

    def restore(self, state: State) -> None:
        self._vector.restore(state)

    def close(self) -> None:
        self._vector.close()
