"""MinAtar (Young and Tian 2019) by name: `MinAtar/Breakout-v1`, five small games on a 10 x 10 board.

A board is uint8 `[C, 10, 10]`: 255 where there is an object, which networks scale to 1.
"""

from __future__ import annotations

import importlib
import logging
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.envs.spaces import Action, Info

PREFIX = "MinAtar/"
GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
Board = NDArray[np.uint8]


class MinAtar(gym.Env):  # type: ignore[misc]
    """One game. `v0` has all 6 actions, `v1` only those that have an effect. Episodes are truncated after `max_steps` (0:
    never)."""

    def __init__(
        self, name: str, *, sticky_action_prob: float = 0.1, difficulty_ramping: bool = True, max_steps: int = 0
    ) -> None:
        found = re.fullmatch(rf"{PREFIX}({'|'.join(GAMES)})-v([01])", name)
        if found is None:
            raise ConfigError("env", name, f"MinAtar has {', '.join(PREFIX + game + '-v1' for game in GAMES)} (and -v0)")
        game = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", found[1]).lower()
        self._game = _environment()(game, sticky_action_prob=sticky_action_prob, difficulty_ramping=difficulty_ramping)
        self._actions = self._game.minimal_action_set() if found[2] == "1" else list(range(self._game.num_actions()))
        height, width, channels = self._game.state_shape()
        self.observation_space = spaces.Box(0, 255, (channels, height, width), np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))
        self._max_steps, self._t = max_steps, 0

    def _obs(self) -> Board:
        board: Board = self._game.state().transpose(2, 0, 1).astype(np.uint8) * np.uint8(255)
        return board

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Board, Info]:
        super().reset(seed=seed)
        self._game.seed(seed)
        # the game keeps its last action (for sticky actions) across episodes; cleared, a seed and actions replay an episode
        self._game.last_action, self._t = 0, 0
        self._game.reset()
        return self._obs(), {}

    def step(self, action: Action) -> tuple[Board, float, bool, bool, Info]:
        reward, ended = self._game.act(self._actions[int(action)])
        self._t += 1
        return self._obs(), float(reward), bool(ended), bool(self._max_steps) and self._t >= self._max_steps, {}


def _environment() -> Callable[..., Any]:
    """MinAtar's own class."""
    logging.disable(logging.WARNING)  # its import warns about plotting libraries, which playing does not need
    try:
        found: Callable[..., Any] = importlib.import_module("minatar").Environment
        return found
    except ModuleNotFoundError as error:
        raise ConfigError("env", "MinAtar", "MinAtar is not installed; pip install minatar") from error
    finally:
        logging.disable(logging.NOTSET)
