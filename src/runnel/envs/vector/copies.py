"""One environment of a vector with the record of its current episode, and the actions that a replay of it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from runnel.core.state import Array
from runnel.core.worker import progressed
from runnel.envs.rewind import reset_to, stateful_part
from runnel.envs.spaces import Info, Obs
from runnel.envs.vector.cpu_base import episode_seed

if TYPE_CHECKING:
    import gymnasium as gym


class EnvCopy:
    """One environment of a vector, with what a replay of its current episode needs."""

    def __init__(self, env: gym.Env, index: int) -> None:
        self.env, self.index = env, index
        self.stateful = stateful_part(env)
        self.episode = -1
        self.seed = 0
        self.total = 0.0
        self.channels: dict[str, float] = {}
        """Sums of the episode by channel; empty before its first step."""
        self.start = 0
        self.failures = 0
        self.task: Array | None = None
        """The task of the episode, if it was given one."""

    def next_episode(self, seed: int, clock: int, task: Array | None = None) -> tuple[Obs, Info]:
        """Reset into the next episode under the run's seed `seed`, to play `task` `[d]` if one is given. `clock` is the
        vector's step count at its first decision."""
        self.episode += 1
        self.seed = episode_seed(seed, self.index, self.episode)
        self.total, self.channels, self.start, self.task = 0.0, {}, clock, task
        obs, info = self.env.reset(seed=self.seed) if task is None else reset_to(self.env, self.seed, task)
        progressed()
        return obs, info


def side_by_side(played: list[Array]) -> list[Array]:
    """Actions of each row `[n_row, ...]`, all of which end now, as one array `[B, ...]` for each step.

    A row with fewer actions than the longest has zeros in front; no replay reads those.
    """
    longest = max(played, key=len)
    history = [np.zeros((len(played), *longest.shape[1:]), longest.dtype) for _ in range(len(longest))]
    for row, actions in enumerate(played):
        for step, action in enumerate(reversed(actions), start=1):
            history[-step][row] = action
    return history
