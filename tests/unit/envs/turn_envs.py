"""Small games in turns (PettingZoo's AEC API) whose every number is known, and mistakes in games."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

MOVES = 8


class Game(AECEnv):
    """What both games share: agents with one observation and one action space each, and the beginning of an episode."""

    def __init__(self, agents: tuple[str, ...], seen: spaces.Space, actions: int) -> None:
        self.metadata = {"name": type(self).__name__}
        self.possible_agents = list(agents)
        self.seen, self.choices = dict.fromkeys(agents, seen), {a: spaces.Discrete(actions) for a in agents}

    def observation_space(self, agent: str) -> spaces.Space:
        return self.seen[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.choices[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.agents = self.possible_agents[:]
        self.agent_selection, self.moves = self.agents[0], 0
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0.0), dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {a: {} for a in self.agents}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self.moves += 1
        self.play(agent, int(action))
        living = [a for a in self.possible_agents if a in self.agents and not self.terminations[a]] or [agent]
        self.agent_selection = self.following(agent, living)
        self._accumulate_rewards()
        self._deads_step_first()

    def play(self, agent: str, action: int) -> None:
        raise NotImplementedError

    def following(self, agent: str, living: list[str]) -> str:
        """Who decides after `agent`."""
        return ([a for a in living if a > agent] or living)[0]

    def close(self) -> None:
        self.closed = True


class Ring(Game):
    """Three players move in turn; a move pays the mover 1 + its action, and -0.5 to all others who are there. `p_1` dies at its
    second move, and all others are truncated at the eighth. Masks come in the info of whoever moves, and in no other."""

    def __init__(self) -> None:
        super().__init__(("p_0", "p_1", "p_2"), spaces.Box(-np.inf, np.inf, (3,), np.float32), 2)

    def observe(self, agent: str) -> Any:
        return np.array([self.moves, self.possible_agents.index(agent), self.draw], np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.draw = self.rng.random()
        self.infos[self.agent_selection] = {"action_mask": self.open}

    @property
    def open(self) -> Any:
        """The second action is open at every other move."""
        return np.array([1, self.moves % 2], np.int8)

    def play(self, agent: str, action: int) -> None:
        assert action == 0 or (self.moves - 1) % 2, "the mask forbids it"
        self.draw = self.rng.random()
        self.rewards = {a: 1.0 + action if a == agent else -0.5 for a in self.agents}
        self.terminations[agent] = agent == "p_1" and self.moves > 3
        self.truncations = {a: self.moves >= MOVES and not self.terminations[a] for a in self.agents}

    def step(self, action: Any) -> None:
        super().step(action)
        mover = self.agent_selection if not any(self.truncations.values()) else None
        self.infos = {a: {"action_mask": self.open} if a == mover else {} for a in self.agents}


class Breaks(Ring):
    """It breaks at the sixth move."""

    def play(self, agent: str, action: int) -> None:
        if self.moves == 6:
            raise RuntimeError("the table fell over")
        super().play(agent, action)


class Wild(Game):
    """Who moves next, who is paid what and who dies is drawn: one may move twice in a row, and die in another's move."""

    def __init__(self) -> None:
        super().__init__(("p_0", "p_1", "p_2"), spaces.Box(-np.inf, np.inf, (1,), np.float32), 2)

    def observe(self, agent: str) -> Any:
        return np.array([self.moves], np.float32)

    def play(self, agent: str, action: int) -> None:
        self.rewards = {a: float(self.rng.integers(-9, 10)) for a in self.agents}
        self.terminations = {a: bool(self.rng.random() < 0.1) for a in self.agents}
        self.truncations = {a: self.moves >= 9 and not self.terminations[a] for a in self.agents}

    def following(self, agent: str, living: list[str]) -> str:
        return str(self.rng.choice(living))


class Saved(Ring):
    """A ring that can save itself. Its masks are those of `Ring`."""

    def get_state(self) -> dict[str, Any]:
        """Everything that a move changes."""
        parts = ("agents", "agent_selection", "moves", "draw", "rewards", "_cumulative_rewards", "terminations", "truncations")
        return copy.deepcopy({name: vars(self)[name] for name in (*parts, "infos")} | {"rng": self.rng.bit_generator.state})

    def set_state(self, state: dict[str, Any]) -> None:
        """Undo `get_state`."""
        state = copy.deepcopy(state)
        self.rng.bit_generator.state = state.pop("rng")
        vars(self).update(state)


class Shared(Saved):
    """Its state is its own memory."""

    def get_state(self) -> dict[str, Any]:
        return vars(self) | {"rng": self.rng.bit_generator.state}

    def set_state(self, state: dict[str, Any]) -> None:
        pass


class Columns(Game):
    """Two players drop discs into three columns of two places; who fills the bottom row's middle and a neighbour wins.
    Masks are in the observation, and are closed for whoever waits."""

    def __init__(self) -> None:
        board = spaces.Box(0, 1, (2, 3, 2), np.int8)
        seen = spaces.Dict({"observation": board, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
        super().__init__(("first_0", "second_0"), seen, 3)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed=seed)
        self.board = np.full((2, 3), -1)

    def observe(self, agent: str) -> Any:
        own = self.possible_agents.index(agent)
        seen = np.stack([self.board == own, self.board == 1 - own], axis=-1).astype(np.int8)
        free = (self.board[1] < 0) & (agent == self.agent_selection)
        return {"observation": seen, "action_mask": free.astype(np.int8)}

    def play(self, agent: str, action: int) -> None:
        own, row = self.possible_agents.index(agent), int(self.board[0, action] >= 0)
        assert self.board[row, action] < 0, "the column is full"
        self.board[row, action] = own
        mine = self.board[0] == own
        won = bool(mine[1] and (mine[0] or mine[2]))
        self.rewards = {a: (1.0 if a == agent else -1.0) * won for a in self.agents}
        if won or (self.board >= 0).all():
            self.terminations = dict.fromkeys(self.agents, True)


def columns() -> Columns:
    """A factory, as users write them."""
    return Columns()


# ---------------------------------------------------------------------------------------------------------------- mistakes
class Stays(Columns):
    """Those who have ended never leave."""

    def step(self, action: Any) -> None:
        if not self.terminations[self.agent_selection]:
            super().step(action)


class Closed(Columns):
    """No action is open."""

    def observe(self, agent: str) -> Any:
        return {**super().observe(agent), "action_mask": np.zeros(3, np.int8)}


class Forgets(Ring):
    """What an agent was paid is never set back, so it is paid again."""

    def step(self, action: Any) -> None:
        before = dict(self._cumulative_rewards)
        agent, over = self.agent_selection, action is None
        super().step(action)
        if not over and agent in self._cumulative_rewards:
            self._cumulative_rewards[agent] += before[agent]


class Two(ParallelEnv):
    """`a_0` and `b_0` act at once, for four steps; `a_0` ends after two. Mistakes are subclasses of it."""

    def __init__(self) -> None:
        self.metadata = {"name": "two"}
        self.possible_agents = ["a_0", "b_0"]
        self.seen = {a: spaces.Box(0.0, 10.0, (2,), np.float32) for a in self.possible_agents}
        self.choices = {a: spaces.Discrete(2) for a in self.possible_agents}

    def observation_space(self, agent: str) -> spaces.Space:
        return self.seen[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.choices[agent]

    def _all(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.agents, value)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.rng = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        return self._all(self._obs()), {a: {} for a in self.agents}

    def _obs(self) -> Any:
        return np.array([self.t, self.rng.random()], np.float32)

    def step(self, actions: Any) -> Any:
        self.t += 1
        over = {a: a == "a_0" and self.t == 2 for a in self.agents}
        cut = {a: a == "b_0" and self.t == 4 for a in self.agents}
        told = (self._all(self._obs()), self._all(1.0), over, cut, {a: {} for a in self.agents})
        self.agents = [a for a in self.agents if not over[a] and not cut[a]]
        return told


class Renames(Two):
    """Every episode has other agents."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        first, last = self.possible_agents
        self.possible_agents = [first, f"b_{int(last[2:]) + 1}"]
        self.seen |= dict.fromkeys(self.possible_agents, self.seen["a_0"])
        self.choices |= dict.fromkeys(self.possible_agents, self.choices["a_0"])
        return super().reset(seed)


class Haunted(Two):
    """`a_0` still gets rewards after it has ended."""

    def step(self, actions: Any) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, {**rewards, "a_0": 1.0}, *rest


class Blind(Two):
    """`b_0` sees nothing."""

    def step(self, actions: Any) -> Any:
        obs, *rest = super().step(actions)
        return {"a_0": obs.get("a_0")}, *rest


class Lacks(Two):
    """`b_0` gets no rewards."""

    def step(self, actions: Any) -> Any:
        obs, rewards, *rest = super().step(actions)
        return obs, {a: r for a, r in rewards.items() if a == "a_0"}, *rest


class Grows(Two):
    """Every instance has a larger observation."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        Grows.made += 1
        self.seen = {a: spaces.Box(0.0, 10.0, (1 + Grows.made,), np.float32) for a in self.possible_agents}

    def _obs(self) -> Any:
        return np.zeros(self.seen["a_0"].shape, np.float32)


class Unseeded(Two):
    """The seed is not used."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(None)


class Tired(Two):
    """A number of earlier episodes is not set back."""

    played = 0

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.played += options is None and seed == 12345
        return super().reset(seed)

    def _obs(self) -> Any:
        return super()._obs() * np.float32(0.5 ** (self.played > 20))


class Silent(Two):
    """`b_0` leaves without a flag."""

    def step(self, actions: Any) -> Any:
        obs, rewards, over, cut, infos = super().step(actions)
        return obs, rewards, over, dict.fromkeys(cut, False), infos


class Outside(Two):
    """Observations leave their space."""

    def _obs(self) -> Any:
        return super()._obs() + np.float32(9.0)


class Endless(Two):
    """Nothing ends."""

    def step(self, actions: Any) -> Any:
        obs, rewards, over, cut, infos = super().step(actions)
        self.t, self.agents = 0, list(self.possible_agents)
        return obs, rewards, dict.fromkeys(over, False), dict.fromkeys(cut, False), infos


class Numbered(Two):
    """Agents are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = [0, 1]


class Nothing(Two):
    """It does not know its spaces."""

    observation_space = None  # type: ignore[assignment]
