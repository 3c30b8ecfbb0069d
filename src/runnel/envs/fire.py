"""FIRE after a lost life: some Atari games (Breakout) wait for it, and a policy that never fires would sit there for ever.

`FireResetEnv` of Baselines and Stable-Baselines3 presses it in steps that nobody sees. Vectors step all rows together, so here
the first step of a life plays FIRE in place of what the policy chose: to the policy, a step in which its choice does not matter
(as with sticky actions). It happens wherever a life is lost and the game goes on, in evaluation too: a policy that was spared
FIRE in training would sit there otherwise.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FIRE = 1
"""Its place in both sets of actions of a game, the smallest that does everything and the full one."""
NO_FIRE = frozenset(
    [
        *("asterix", "backgammon", "crazy_climber", "freeway", "frogger", "journey_escape", "koolaid", "kung_fu_master"),
        *("lost_luggage", "ms_pacman", "pacman", "skiing", "surround", "tutankham", "video_checkers"),
    ]
)
"""Games whose smallest set of actions has no FIRE there."""


class FireFirst:
    """Remembers which of `num_envs` games lost a life and play on. `fire` is the action: a number, or a row of numbers."""

    def __init__(self, num_envs: int, fire: Any = FIRE) -> None:
        self._fire, self._lives, self._due = fire, np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)

    def begin(self, rows: Any, lives: Array) -> None:
        """New games, in which whoever reset them has pressed FIRE. `lives` are those of `rows`."""
        self._lives[rows], self._due[rows] = lives, False

    def see(self, lives: Array) -> None:
        """What a step left. `[B]`"""
        self._due = (lives < self._lives) & (lives > 0)
        self._lives[:] = lives

    def actions(self, chosen: Array) -> Array:
        """What is played in place of `chosen` `[B, ...]`."""
        if not self._due.any():
            return chosen
        played = chosen.copy()
        played[self._due] = self._fire
        return played


class FiringVector(gym.vector.VectorWrapper):  # type: ignore[misc]
    """A vector of ale-py that plays FIRE first in every life."""

    def __init__(self, vec: Any, fire: Any) -> None:
        super().__init__(vec)
        self._first = FireFirst(vec.num_envs, fire)
        self.presses = True
        """Whether it does; not while games are replayed that were played without."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        rows = np.flatnonzero((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        self._first.begin(rows, info["lives"][rows])
        return obs, info

    def step(self, actions: Array) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        played = self._first.actions(actions) if self.presses else actions
        obs, reward, terminated, truncated, info = self.env.step(played)
        self._first.see(info["lives"])
        return obs, reward, terminated, truncated, info
