"""Plays FIRE after a lost life: some Atari games (Breakout) wait for it, and a policy that never fires would wait for ever.

`FireResetEnv` of Baselines and Stable-Baselines3 plays it in extra steps that the policy does not see. Vectors step all rows
together, so here the first step of a life plays FIRE instead of the policy's action. To the policy this is a step in which its
action has no effect, as with sticky actions. It also happens in evaluation: the policy has not learned to fire by itself.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from runnel.core.state import Array
from runnel.envs.spaces import Info, Obs

FIRE = 1
"""Number of the action FIRE, in the minimal and in the full set of actions."""
NO_FIRE = frozenset(
    [
        *("asterix", "backgammon", "crazy_climber", "freeway", "frogger", "journey_escape", "koolaid", "kung_fu_master"),
        *("lost_luggage", "ms_pacman", "pacman", "skiing", "surround", "tutankham", "video_checkers"),
    ]
)
"""Games without FIRE in their minimal set of actions."""


class FireFirst:
    """Keeps track of the games (`num_envs` of them) that lost a life and go on. `fire` is the action: a number, or an array."""

    def __init__(self, num_envs: int, fire: int | Array = FIRE) -> None:
        self._fire, self._lives, self._due = fire, np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)

    def begin(self, rows: Array | slice, lives: Array) -> None:
        """New games begin in `rows`, with `lives`. The reset has already played FIRE in them."""
        self._lives[rows], self._due[rows] = lives, False

    def see(self, lives: Array) -> None:
        """Look at the lives after a step. `[B]`"""
        self._due = (lives < self._lives) & (lives > 0)
        self._lives[:] = lives

    def actions(self, chosen: Array) -> Array:
        """The actions to play instead of `chosen`: FIRE where a life was just lost. `[B, ...]`"""
        if not self._due.any():
            return chosen
        played = chosen.copy()
        played[self._due] = self._fire
        return played


class FiringVector(gym.vector.VectorWrapper):  # type: ignore[misc]
    """A vector of ale-py that plays FIRE as the first action of every life."""

    def __init__(self, vec: gym.vector.VectorEnv, fire: int | Array) -> None:
        super().__init__(vec)
        self._first = FireFirst(vec.num_envs, fire)
        self.presses = True
        """Whether it plays FIRE; False while a resume replays games that were played without it."""

    def reset(self, *, seed: int | list[int | None] | Array | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        obs, info = self.env.reset(seed=seed, options=options)
        rows = np.flatnonzero((options or {}).get("reset_mask", np.ones(self.num_envs, bool)))
        self._first.begin(rows, info["lives"][rows])
        return obs, info

    def step(self, actions: Array) -> tuple[Obs, Array, Array, Array, Info]:
        played = self._first.actions(actions) if self.presses else actions
        obs, reward, terminated, truncated, info = self.env.step(played)
        self._first.see(info["lives"])
        return obs, reward, terminated, truncated, info
