"""Small environments of several agents whose every number is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

Out = dict[str, Any]


class Leaver:
    """Agents `early_0` and `late_0` count the steps. The first leaves after `leaves` steps, the second is cut after `length`.

    An observation is [step, the last own action, a number drawn from the seed]; an action a pays a + 1 of the agent's.
    """

    possible_agents = ("early_0", "late_0")

    def __init__(self, leaves: int = 2, length: int = 5) -> None:
        self.leaves, self.length = leaves, length
        self.agents: list[str] = []
        self._t, self._last, self._rng = 0, dict.fromkeys(self.possible_agents, 0), np.random.default_rng(0)

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (3,) if agent == "early_0" else (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2 if agent == "early_0" else 3)

    def _obs(self) -> Out:
        draw = self._rng.random()
        rows = {a: [self._t, self._last[a], draw] + [1.0] * (a == "late_0") for a in self.agents}
        return {a: np.array(x, np.float32) for a, x in rows.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Out, Out]:
        self._rng = np.random.default_rng(seed)
        self.agents, self._t, self._last = list(self.possible_agents), 0, dict.fromkeys(self.possible_agents, 0)
        return self._obs(), {a: {} for a in self.agents}

    def step(self, actions: Out) -> tuple[Out, Out, Out, Out, Out]:
        assert set(actions) == set(self.agents), f"{set(actions)} is not {set(self.agents)}"
        self._t += 1
        self._last |= {a: int(x) for a, x in actions.items()}
        obs = self._obs()
        rewards = {a: float(x) + 1.0 for a, x in actions.items()}
        terminated = {a: a == "early_0" and self._t >= self.leaves for a in self.agents}
        truncated = {a: a == "late_0" and self._t >= self.length for a in self.agents}
        self.agents = [a for a in self.agents if not (terminated[a] or truncated[a])]
        return obs, rewards, terminated, truncated, {a: {} for a in obs}


class Turns:
    """`x` and `y` take turns for `length` moves; each move pays the mover 1 and the one who waits -0.5; then both terminate."""

    possible_agents = ("x", "y")

    def __init__(self, length: int = 4) -> None:
        self.length, self.agents, self._t = length, [], 0

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def _obs(self) -> Out:
        return {a: np.array([self._t, i], np.float32) for i, a in enumerate(self.possible_agents)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Out, Out]:
        self._t, self.agents = 0, ["x"]
        return self._obs(), {}

    def step(self, actions: Out) -> tuple[Out, Out, Out, Out, Out]:
        assert list(actions) == self.agents
        self._t += 1
        mover = self.agents[0]
        rewards = {a: 1.0 if a == mover else -0.5 for a in self.possible_agents}
        over = self._t >= self.length
        self.agents = [] if over else [self.possible_agents[self._t % 2]]
        return self._obs(), rewards, dict.fromkeys(self.possible_agents, over), dict.fromkeys(self.possible_agents, False), {}

    def get_state(self) -> Out:
        """All of it is the number of moves."""
        return {"t": self._t}

    def set_state(self, state: Out) -> None:
        """Undo `get_state`."""
        self._t = int(state["t"])
        self.agents = [self.possible_agents[self._t % 2]]


class Masked(Leaver):
    """`early_0` must take its last action; its mask comes in `infos`, or, with `in_obs`, inside the observation."""

    def __init__(self, in_obs: bool = False, length: int = 5) -> None:
        super().__init__(length=length)
        self.in_obs = in_obs

    def observation_space(self, agent: str) -> spaces.Space:
        inner = super().observation_space(agent)
        if agent != "early_0" or not self.in_obs:
            return inner
        return spaces.Dict({"seen": inner, "action_mask": spaces.MultiBinary(2)})

    def _obs(self) -> Out:
        obs = super()._obs()
        if self.in_obs and "early_0" in obs:
            obs["early_0"] = {"seen": obs["early_0"], "action_mask": np.array([0, 1], np.int8)}
        return obs

    def _infos(self, agents: Any) -> Out:
        given = {} if self.in_obs else {"action_mask": np.array([0, 1], np.int8)}
        return {a: given if a == "early_0" else {} for a in agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Out, Out]:
        obs, _ = super().reset(seed=seed)
        return obs, self._infos(obs)

    def step(self, actions: Out) -> tuple[Out, Out, Out, Out, Out]:
        if "early_0" in actions:
            assert actions["early_0"] == 1, "its mask allows the last action only"
        obs, *rest, _ = super().step(actions)
        return obs, *rest, self._infos(obs)  # type: ignore[return-value]


class Crew:
    """Agents `a`, `b` and `c`, with equal spaces, leave at a step of their own, each drawn anew: terminated or truncated.

    Agent i sees [a number of the episode, i, steps], may take action 0 and (i + steps) % 3, and is paid 10 i + steps and the
    number of its action. `state()` is [that number, steps, who is there].
    """

    possible_agents = ("a", "b", "c")
    state_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)

    def __init__(self, longest: int = 6) -> None:
        self.longest, self.agents = longest, []
        self._t, self._draw, self._ends = 0, 0.0, {}

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def state(self) -> np.ndarray[Any, Any]:
        there = [agent in self.agents for agent in self.possible_agents]
        return np.array([self._draw, self._t, *there], np.float32)

    def _seen(self, agents: Any) -> tuple[Out, Out]:
        number = {agent: i for i, agent in enumerate(self.possible_agents)}
        obs = {a: np.array([self._draw, number[a], self._t], np.float32) for a in agents}
        masks = {a: np.array([k in (0, (number[a] + self._t) % 3) for k in range(3)], np.int8) for a in agents}
        return obs, {a: {"action_mask": masks[a]} for a in agents}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Out, Out]:
        rng = np.random.default_rng(seed)
        self.agents, self._t, self._draw = list(self.possible_agents), 0, float(rng.random())
        ends = zip(rng.integers(1, self.longest + 1, 3), rng.random(3) < 0.5, strict=True)
        self._ends = dict(zip(self.possible_agents, ends, strict=True))
        return self._seen(self.agents)

    def step(self, actions: Out) -> tuple[Out, Out, Out, Out, Out]:
        assert set(actions) == set(self.agents)
        obs_of, self._t = list(self.agents), self._t + 1
        over = {a: self._t >= self._ends[a][0] for a in obs_of}
        number = {agent: i for i, agent in enumerate(self.possible_agents)}
        rewards = {a: 10.0 * number[a] + self._t + float(actions[a]) for a in obs_of}
        terminated, truncated = ({a: over[a] and bool(self._ends[a][1]) is how for a in obs_of} for how in (True, False))
        obs, infos = self._seen(obs_of)
        self.agents = [a for a in obs_of if not over[a]]
        return obs, rewards, terminated, truncated, infos


class StatelessCrew(Crew):
    """A crew without a state of its own."""

    state_space = None


class Rowers(Crew):
    """A crew whose actions are boxes: agent i is paid for coming near to (i, number of the episode)."""

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(np.float32(-1.0), np.float32([2.0, 1.0]), (2,), np.float32)

    def _seen(self, agents: Any) -> tuple[Out, Out]:
        obs, _ = super()._seen(agents)
        return obs, {agent: {} for agent in agents}

    def step(self, actions: Out) -> tuple[Out, Out, Out, Out, Out]:
        aims = {a: np.array([i, self._draw]) for i, a in enumerate(self.possible_agents)}
        paid = {a: -float(np.square(x - aims[a]).sum()) for a, x in actions.items()}
        obs, _, *rest = super().step(dict.fromkeys(actions, 0))
        return obs, paid, *rest  # type: ignore[return-value]


class Rivals(Crew):
    """A crew that says of itself that what some win the others lose."""

    metadata: Mapping[str, Any] = {"zero_sum": True}
