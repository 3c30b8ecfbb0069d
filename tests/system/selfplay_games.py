"""Small games of equal seats for tests of self-play."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

ByAgent = dict[str, Any]


class Bids:
    """Both bid 0, 1 or 2 in each of a few rounds, at once; the higher bid wins the round, but a bid of 2 loses to one of 0. Who won
    more rounds gets 1, the other -1. Episodes have three to six rounds, so that they lie across segments."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.agents: list[str] = []
        self._rng = np.random.default_rng(0)
        self._t = self._rounds = self._lead = 0

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-10.0, 10.0, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def _obs(self) -> ByAgent:
        late = float(self._rounds - self._t)
        return {a: np.array([late, s * self._lead, 1.0], np.float32) for a, s in zip(self.possible_agents, (1, -1), strict=True)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._t, self._lead = list(self.possible_agents), 0, 0
        self._rounds = int(self._rng.integers(3, 7))
        return self._obs(), {a: {} for a in self.agents}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ByAgent, ByAgent, ByAgent, ByAgent]:
        left, right = int(actions["left"]), int(actions["right"])
        self._lead += ((left - right + 1) % 3 - 1) if left != right else 0
        self._t += 1
        over = self._t == self._rounds
        paid = float(np.sign(self._lead)) if over else 0.0
        rewards = {"left": paid, "right": -paid}
        if over:
            self.agents = []
        flags = dict.fromkeys(self.possible_agents, over)
        return self._obs(), rewards, flags, dict.fromkeys(self.possible_agents, False), {a: {} for a in self.possible_agents}


class Uneven(Bids):
    """Seats that differ in what they see."""

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-10.0, 10.0, (3 + (agent == "right"),), np.float32)


class Alone(Bids):
    """A single seat."""

    possible_agents = ("left",)


class Three(Bids):
    """Three seats: the first leaves after two rounds, the last comes in at the second; who bids most in all wins."""

    possible_agents = ("a", "b", "c")

    def _seen(self) -> ByAgent:
        return {agent: np.array([self._t, i, self._rounds], np.float32) for i, agent in enumerate(self.possible_agents)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._t, self._rounds, self.agents = 0, int(self._rng.integers(4, 8)), ["a", "b"]
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
