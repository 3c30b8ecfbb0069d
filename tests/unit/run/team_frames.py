"""Two agents that look at frames of 10 x 10, or that are told their luck."""

from __future__ import annotations

from typing import Any

import numpy as np
from field_tasks import Frame
from gymnasium import spaces
from toy_envs import Luck


class Frames:
    """Each of `a` and `b` has a `Frame` of its own; both leave when the first of them is over."""

    possible_agents = ("a", "b")

    def __init__(self, stack: int = 0) -> None:
        self.agents: list[str] = []
        self._each: dict[str, Any] = {agent: Frame(stack) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space:
        return self._each[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space:
        return self._each[agent].action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start again."""
        self.agents = list(self.possible_agents)
        seeds = np.random.SeedSequence(seed).generate_state(2)
        first = {a: env.reset(seed=int(s)) for (a, env), s in zip(self._each.items(), seeds, strict=True)}
        return {a: x[0] for a, x in first.items()}, {a: x[1] for a, x in first.items()}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """One more frame."""
        found = {a: self._each[a].step(action) for a, action in actions.items()}
        over = any(x[2] or x[3] for x in found.values())
        self.agents = [] if over else self.agents
        obs, rewards, terminated, _, infos = ({a: x[i] for a, x in found.items()} for i in range(5))
        return obs, rewards, terminated, dict.fromkeys(found, over), infos


class Lucks(Frames):
    """Each has a `Luck` of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._each = {agent: Luck(length=4) for agent in self.possible_agents}
