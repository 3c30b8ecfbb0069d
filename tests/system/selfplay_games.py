"""Small games of equal seats for tests of self-play."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from runnel.envs.team.toy import Bids

ByAgent = dict[str, Any]


class Uneven(Bids):
    """Seats that differ in what they see."""

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-10.0, 10.0, (3 + (agent == "right"),), np.float32)


class Alone(Bids):
    """A single seat."""

    possible_agents = ("left",)

    def _seen(self) -> ByAgent:
        return {"left": np.zeros(3, np.float32)}


class Three(Bids):
    """Three seats: the first leaves after two rounds, the last comes in at the second; who bids most in all wins."""

    possible_agents = ("a", "b", "c")

    def _seen(self) -> ByAgent:
        return {agent: np.array([self._t, i, self._rounds], np.float32) for i, agent in enumerate(self.possible_agents)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._t, self._rounds, self.agents = 0, int(self._rng.integers(4, 7)), ["a", "b"]
        return {agent: self._seen()[agent] for agent in self.agents}, {}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        rewards = {agent: float(bid) for agent, bid in actions.items()}
        self._t += 1
        over = {agent: self._t == self._rounds or (agent == "a" and self._t == 2) for agent in actions}
        self.agents = [agent for agent in actions if not over[agent]]
        if self._t == 1:
            self.agents.append("c")
        obs = {agent: self._seen()[agent] for agent in {*actions, *self.agents}}
        return obs, rewards, over, dict.fromkeys(over, False), {agent: {} for agent in obs}
