"""Tiny environments that tests alone use: Dict observations, actions of several parts, a slow step, and the plain form of a
tensor environment."""

from __future__ import annotations

import copy
import time
from typing import ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from runnel.core.errors import ConfigError
from runnel.envs.spaces import Action, Info, StepResult
from runnel.envs.toy import Obs, TruncationTrap


class DictGoal(gym.Env):  # type: ignore[misc]
    """Walk along 0..size-1 to a goal: Dict observation with a number and a one-hot place; -0.1 a step, 1 at the goal."""

    def __init__(self, size: int = 5, max_steps: int = 20) -> None:
        self.observation_space = spaces.Dict(
            {"place": spaces.Discrete(size), "goal": spaces.Dict({"offset": spaces.Box(-1.0, 1.0, (1,), np.float32)})}
        )
        self.action_space = spaces.Discrete(2)
        self.size, self.max_steps = size, max_steps
        self._place = self._goal = self._t = 0

    def _obs(self) -> Info:
        offset = np.array([(self._goal - self._place) / (self.size - 1)], np.float32)
        return {"place": self._place, "goal": {"offset": offset}}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        super().reset(seed=seed)
        self._place, self._goal = (int(x) for x in self.np_random.permutation(self.size)[:2])
        self._t = 0
        return self._obs(), {}

    def step(self, action: int) -> StepResult:
        self._t += 1
        self._place = min(max(self._place + (1 if action == 1 else -1), 0), self.size - 1)
        terminated = self._place == self._goal
        return self._obs(), 1.0 if terminated else -0.1, terminated, self._t >= self.max_steps, {}


class Far(gym.Env):  # type: ignore[misc]
    """Sparse: x' = x + 0.2 a, |a| <= 1, from 0; a step pays 1 where x is at least `goal`, and nothing before. A random walk of
    20 steps hardly ever gets there; pushing one way pays max_steps - 5 goal + 1."""

    def __init__(self, goal: float = 2.0, max_steps: int = 20) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.goal, self.max_steps, self._x, self._t = goal, max_steps, 0.0, 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._x, self._t = 0.0, 0
        return np.array([self._x], np.float32), {}

    def step(self, action: Action) -> StepResult:
        self._t += 1
        self._x += 0.2 * float(np.clip(np.asarray(action).item(), -1.0, 1.0))
        paid = float(self._x >= self.goal - 1e-6)
        return np.array([self._x], np.float32), paid, False, self._t >= self.max_steps, {}


class Lookahead(gym.Env):  # type: ignore[misc]
    """Two steps of four actions. Action 0 leads where one action of four pays 1 (0.25 at random); others lead to a sure 0.4."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Discrete(3), spaces.Discrete(4)
        self._place = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[int, Info]:
        super().reset(seed=seed)
        self._place = 0
        return self._place, {}

    def step(self, action: Action) -> StepResult:
        before, choice = self._place, int(np.asarray(action).item())
        if before == 0:
            self._place = 1 if choice == 0 else 2
            return self._place, 0.0, False, False, {}
        return before, float(choice == 3) if before == 1 else 0.4, True, False, {}


class Rules(gym.Env):  # type: ignore[misc]
    """One decision by a rule over a table: a category of six and four numbers between 0 and 1, of which two do not matter.
    1 for the right one of two actions: `category is even` exclusive or `first number above 0.7`, or the second above 0.9."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict({"kind": spaces.Discrete(6), "x": spaces.Box(0.0, 1.0, (4,), np.float32)})
        self.action_space = spaces.Discrete(2)
        self._kind, self._x = 0, np.zeros(4, np.float32)

    def _draw(self) -> Info:
        self._kind, self._x = int(self.np_random.integers(6)), self.np_random.random(4).astype(np.float32)
        return {"kind": self._kind, "x": self._x}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        super().reset(seed=seed)
        return self._draw(), {}

    def step(self, action: Action) -> StepResult:
        right = (self._kind % 2 == 0) != bool(self._x[0] > 0.7) or bool(self._x[1] > 0.9)
        paid = float(int(np.asarray(action).item()) == right)
        return self._draw(), paid, True, False, {}


class Aim(gym.Env):  # type: ignore[misc]
    """One shot at a target that is not shown: pays minus the distance. A policy that was trained at a target hits that one."""

    def __init__(self, target: float = 0.0) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.target = target

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Action) -> StepResult:
        return np.ones(1, np.float32), -abs(float(np.asarray(action).item()) - self.target), True, False, {}


class Luck(gym.Env):  # type: ignore[misc]
    """Each step pays 1 if the action has the sign of `cue`, and `luck` (normal, times `scale`, drawn for the episode) whatever
    the action is. Only who is told the luck can see what an action was worth; `told`: it is a part of the observation."""

    def __init__(self, scale: float = 30.0, length: int = 1, box: bool = False, told: bool = True) -> None:
        names = ("cue", "luck") if told else ("cue",)
        self.observation_space = spaces.Dict({name: spaces.Box(-np.inf, np.inf, (1,), np.float32) for name in names})
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if box else spaces.Discrete(2)
        self.scale, self.length, self.box = scale, length, box
        self._t, self._cue, self._luck = 0, 0.0, 0.0

    def _obs(self) -> Info:
        numbers = {"cue": self._cue, "luck": self._luck}
        return {name: np.array([numbers[name]], np.float32) for name in self.observation_space}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Info, Info]:
        super().reset(seed=seed)
        self._t, self._cue, self._luck = 0, self.np_random.choice([-1.0, 1.0]), self.np_random.normal()
        return self._obs(), {}

    def step(self, action: Action) -> StepResult:
        side = float(np.asarray(action).item()) if self.box else 2.0 * int(np.asarray(action).item()) - 1.0
        reward = float(side * self._cue > 0.0) + self.scale * self._luck
        self._t, self._cue = self._t + 1, self.np_random.choice([-1.0, 1.0])
        return self._obs(), float(reward), self._t >= self.length, False, {}


class Composite(gym.Env):  # type: ignore[misc]
    """One decision of several parts at once. A side (-1 or 1) is shown; a choice pays for its first value at -1 and for its
    last at 1, a box for lying near half the side. The reward is the mean over parts, at most 1.

    `masked` closes a wrong value of every choice that has three or more (`info["action_mask"]`, one mask a part); a closed
    one raises.
    """

    SPACES: ClassVar[dict[str, spaces.Space]] = {
        "multi_discrete": spaces.MultiDiscrete([2, 3, 4], start=[0, 1, -2]),
        "multi_binary": spaces.MultiBinary((2, 2)),
        "tuple": spaces.Tuple((spaces.Discrete(3, start=5), spaces.Box(-1.0, 1.0, (2,), np.float32))),
        "dict": spaces.Dict(
            {
                "move": spaces.Dict({"push": spaces.Box(-1.0, 1.0, (1,), np.float32), "turn": spaces.Discrete(3)}),
                "tools": spaces.MultiDiscrete([[2], [4]]),
            }
        ),
    }

    def __init__(self, action: str = "dict", masked: bool = False) -> None:
        if action not in self.SPACES:
            raise ConfigError("action", action, f"use one of {', '.join(self.SPACES)}")
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = copy.deepcopy(self.SPACES[action])
        self.masked, self._side = masked, 1
        self._choices = [_choices(space) for space, _ in _leaves(self.action_space)]
        self._mask = tuple(_open(n) for choices in self._choices for n, _ in choices)

    def _obs(self) -> Obs:
        return np.array([self._side], np.float32)

    def _info(self) -> Info:
        return {"action_mask": self._mask} if self.masked else {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        self._side = 1 if self.np_random.random() < 0.5 else -1
        return self._obs(), self._info()

    def step(self, action: Action) -> StepResult:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is no member of {self.action_space}")
        pay: list[float] = []
        for choices, (_, value) in zip(self._choices, _leaves(self.action_space, action), strict=True):
            numbers = np.reshape(value, -1).tolist()
            if not choices:
                pay += [1.0 - abs(x - self._side / 2) for x in numbers]
            for (n, start), x in zip(choices, numbers, strict=False):
                if self.masked and n > 2 and x - start == 1:
                    raise ValueError(f"value {x} is masked")
                pay.append(float(x - start == (n - 1 if self._side > 0 else 0)))
        return self._obs(), sum(pay) / len(pay), True, False, self._info()


def _leaves(space: gym.Space, value: Action = None) -> list[tuple[gym.Space, Action]]:
    """Every space inside a composite one that holds one array, with its part of `value`."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
        return [pair for k in keys for pair in _leaves(space.spaces[k], None if value is None else value[k])]
    return [(space, value)]


def _choices(space: gym.Space) -> list[tuple[int, int]]:
    """Number of values and first value of every choice in the space of one array; a box has none."""
    if isinstance(space, spaces.Discrete):
        return [(int(space.n), int(space.start))]
    if isinstance(space, spaces.MultiBinary):
        return [(2, 0)] * int(np.prod(space.shape))
    if isinstance(space, spaces.MultiDiscrete):
        return [(int(n), int(s)) for n, s in zip(space.nvec.reshape(-1), space.start.reshape(-1), strict=True)]
    return []


def _open(n: int) -> NDArray[np.int8]:
    """A mask of `n` values: the second is closed where there are more than two (it is never the right one)."""
    mask = np.ones(n, np.int8)
    if n > 2:
        mask[1] = 0
    return mask


class PlainFourRooms(gym.Env):  # type: ignore[misc]
    """`tensor:FourRooms` (`envs/device/grid.py`) in plain Python: the independent form that it is checked against."""

    def __init__(self, size: int = 9, max_steps: int = 100) -> None:
        if size < 5 or size % 2 == 0:
            raise ConfigError("env_kwargs.size", size, "use an odd number from 5 up")
        self.observation_space = spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.action_space = spaces.Discrete(4)
        self.size, self.max_steps, self._t = size, max_steps, 0
        self.agent = self.goal = (1, 1)

    def is_wall(self, row: int, column: int) -> bool:
        """The border, and the middle row and column except at their doors."""
        last, middle = self.size - 1, self.size // 2
        if row in (0, last) or column in (0, last):
            return True
        doors = ((middle + 1) // 2, middle + middle // 2)
        return (row == middle and column not in doors) or (column == middle and row not in doors)

    def _around(self) -> list[tuple[int, int]]:
        row, column = self.agent
        return [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]

    def _obs(self) -> Obs:
        places = [2.0 * x / (self.size - 1) - 1.0 for x in (*self.agent, *self.goal)]
        return np.array([*places, *(float(self.is_wall(*place)) for place in self._around())], np.float32)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Obs, Info]:
        super().reset(seed=seed)
        free = [(r, c) for r in range(self.size) for c in range(self.size) if not self.is_wall(r, c)]
        start, goal = self.np_random.choice(len(free), size=2, replace=False)
        self.agent, self.goal, self._t = free[start], free[goal], 0
        return self._obs(), {}

    def step(self, action: int) -> StepResult:
        self._t += 1
        place = self._around()[action]
        if not self.is_wall(*place):
            self.agent = place
        there = self.agent == self.goal
        return self._obs(), 1.0 if there else -0.01, there, self._t >= self.max_steps, {}


class Slow(TruncationTrap):
    """A `TruncationTrap` whose step takes `step_s` seconds."""

    def __init__(self, max_steps: int = 5, step_s: float = 0.001) -> None:
        super().__init__(max_steps)
        self.step_s = step_s

    def step(self, action: int) -> StepResult:
        time.sleep(self.step_s)
        return super().step(action)
