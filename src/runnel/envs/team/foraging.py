"""Level-based foraging by name: `lbforaging:Foraging-8x8-2p-2f-coop-v3`, with PettingZoo's parallel API.

Players pick up food together: it takes players next to it whose levels sum up to its own. Each is paid its share of the food;
over an episode and all players this sums up to the share of food that was eaten, from 0 to 1.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from runnel.core.errors import ConfigError
from runnel.core.state import State
from runnel.envs.spaces import Action, Info, Obs

PREFIX = "lbforaging:"


def foraging_factory(target: str) -> Callable[..., Foraging]:
    """What makes the task that `target` names; its arguments replace those of the package's own registration."""
    try:
        import lbforaging  # which registers its tasks
        from lbforaging.foraging import ForagingEnv
    except ModuleNotFoundError as error:
        raise ConfigError("env", target, f'needs the package {error.name}: pip install "runnel[teams]"') from error
    name = target.removeprefix(PREFIX)
    known = [task for task in gym.registry if task.startswith("Foraging")]
    if name not in known:
        close = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "a name is Foraging-8x8-2p-2f-coop-v3"
        raise ConfigError("env", target, f"{lbforaging.__name__} has no task {name!r}; {hint}")
    given = gym.spec(name).kwargs

    def make(*, common_reward: bool = False, **options: Any) -> Foraging:
        return Foraging(ForagingEnv(**{**given, **options}), name, common_reward=common_reward)

    return make


class Foraging(ParallelEnv):  # type: ignore[misc]
    """One task. The package ends an episode at its last step as if the food were eaten; here that is a truncation. With
    `common_reward` every player gets what all of them got, so that the return of each is the share of food."""

    def __init__(self, task: Any, name: str, *, common_reward: bool = False) -> None:
        self.task, self._common = task, common_reward
        self.metadata = {"name": name, "render_modes": []}
        self.possible_agents = [f"player_{i}" for i in range(task.n_agents)]
        # a space for each, because the package gives all players the same object, and they would share its seed
        boxes = [spaces.Box(box.low, box.high, box.shape, box.dtype) for box in task.observation_space]
        self.observation_spaces = dict(zip(self.possible_agents, boxes, strict=True))
        self.action_spaces = {agent: spaces.Discrete(int(task.action_space[0].n)) for agent in self.possible_agents}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Obs], dict[str, Info]]:
        obs, _ = self.task.reset(seed=seed)
        self.agents = list(self.possible_agents)
        return self._by_agent(obs), {agent: {} for agent in self.agents}

    def _by_agent(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))

    def step(self, actions: dict[str, Action]) -> tuple[dict[str, Any], ...]:
        obs, rewards, over, _, _ = self.task.step([int(actions[agent]) for agent in self.possible_agents])
        eaten = bool(over) and not self.task.field.any()
        paid = [float(sum(rewards))] * len(rewards) if self._common else [float(reward) for reward in rewards]
        everybody = self.possible_agents
        self.agents = [] if over else list(everybody)
        ends, cuts = dict.fromkeys(everybody, eaten), dict.fromkeys(everybody, bool(over) and not eaten)
        return self._by_agent(obs), self._by_agent(paid), ends, cuts, {agent: {} for agent in everybody}

    def get_state(self) -> State:
        """The field, the players, the step and the generator, as plain data."""
        task = self.task
        return {
            "field": task.field.copy(),
            "players": [[*map(int, p.position), int(p.level), float(p.score), float(p.reward)] for p in task.players],
            "step": int(task.current_step),
            "food": float(task._food_spawned),
            "over": bool(task.game_over),
            # as text, because its integers have 128 bits, more than a checkpoint's number types hold
            "rng": json.dumps(task.np_random.bit_generator.state),
        }

    def set_state(self, state: State) -> None:
        """Undo `get_state`."""
        task = self.task
        task.field = np.array(state["field"], np.int32)
        for player, (row, column, level, score, reward) in zip(task.players, state["players"], strict=True):
            player.setup((int(row), int(column)), int(level), task.field_size)
            player.score, player.reward = score, reward
        task.current_step, task._food_spawned = int(state["step"]), state["food"]
        task._game_over = bool(state["over"])
        task.np_random.bit_generator.state = json.loads(state["rng"])
        task._gen_valid_moves()
        self.agents = [] if task.game_over else list(self.possible_agents)

    def close(self) -> None:
        self.task.close()
