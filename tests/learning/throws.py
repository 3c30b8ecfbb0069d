"""Rock, paper, scissors in one throw, for tests of self-play."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

PAYS = np.array([[0.0, -2.0, 1.0], [2.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], np.float32)
"""What the row gets against the column: paper beats rock for 2, the others win 1. The only equilibrium is (1/4, 1/4, 1/2)."""
ByAgent = dict[str, Any]


class Throw:
    """Both throw at once, and see nothing before."""

    possible_agents = ("left", "right")

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[ByAgent, ByAgent]:
        self.agents = list(self.possible_agents)
        return {agent: np.ones(1, np.float32) for agent in self.agents}, {}

    def step(self, actions: ByAgent) -> tuple[ByAgent, ...]:
        left = float(PAYS[int(actions["left"]), int(actions["right"])])
        obs, over = {agent: np.ones(1, np.float32) for agent in self.agents}, dict.fromkeys(self.agents, True)
        self.agents = []
        return obs, {"left": left, "right": -left}, over, dict.fromkeys(over, False), {agent: {} for agent in over}
