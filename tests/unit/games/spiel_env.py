"""A game of OpenSpiel as an environment of two agents, by PettingZoo's parallel API: whoever waits is not in `agents`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyspiel
from gymnasium import spaces


class Kuhn:
    """Kuhn poker; `player_0` and `player_1` see their information states."""

    possible_agents = ("player_0", "player_1")

    def __init__(self) -> None:
        self.game = pyspiel.load_game("kuhn_poker")
        self.agents: list[str] = []
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        size = self.game.information_state_tensor_size()
        return spaces.Dict({"observation": spaces.Box(0, 1, (size,)), "action_mask": spaces.MultiBinary(2)})

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.state = self.game.new_initial_state()
        while self.state.is_chance_node():
            self.state.apply_action(int(self.rng.choice(self.state.legal_actions())))
        self.agents = [self.possible_agents[0]]
        return self.seen(self.agents), {agent: {} for agent in self.agents}

    def seen(self, agents: Any) -> dict[str, Any]:
        tensors = [np.array(self.state.information_state_tensor(i), np.float32) for i in range(2)]
        return {a: {"observation": tensors[int(a[-1])], "action_mask": np.ones(2, np.int8)} for a in agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        (agent,) = self.agents
        self.state.apply_action(int(actions[agent]))
        over = self.state.is_terminal()
        told = self.possible_agents if over else (agent, self.possible_agents[self.state.current_player()])
        rewards = dict(zip(self.possible_agents, self.state.returns(), strict=True)) if over else {}
        self.agents = [] if over else [told[1]]
        none = dict.fromkeys(told, False)
        return self.seen(told), rewards, dict.fromkeys(told, over), none, {a: {} for a in told}
