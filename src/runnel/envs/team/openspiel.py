"""Games of OpenSpiel by name: `openspiel:kuhn_poker`, `openspiel:connect_four`, `openspiel:goofspiel(num_cards=4)`.

A game in turns has PettingZoo's AEC API, a game of simultaneous moves the parallel one. Agents are `player_0`, `player_1`, ...
An observation has `observation`, the tensor of the player's information state (where a game has none: of its observation), and
`action_mask`. Chance is drawn from the seed of `reset`. A player gets, at each step, by how much its return has grown.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_rng, rng_state, set_rng_state
from runnel.core.state import Array, State
from runnel.envs.spaces import MASK, ZERO_SUM, Action, Info, Obs

PREFIX = "openspiel:"
_INSTALL = 'needs the package open_spiel: pip install "runnel[games]"'


def openspiel_factory(target: str) -> Callable[..., Any]:
    """What makes the game that `target` names; the parameters of the game are its arguments."""
    try:
        import pyspiel
    except ModuleNotFoundError as error:
        raise ConfigError("env", target, _INSTALL) from error
    name = target.removeprefix(PREFIX)
    short, known = name.partition("(")[0], pyspiel.registered_names()
    if short not in known:
        close = difflib.get_close_matches(short, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "pyspiel.registered_names() has all of them"
        raise ConfigError("env", target, f"OpenSpiel has no game {short!r}; {hint}")

    def make(**parameters: Any) -> SpielTurns | SpielAtOnce:
        game = _load(pyspiel, target, name, parameters)
        at_once = game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
        return SpielAtOnce(game) if at_once else SpielTurns(game)

    return make


def _load(pyspiel: ModuleType, target: str, name: str, parameters: dict[str, Any]) -> Any:
    """The game, if it can be played here."""
    if parameters and "(" in name:
        raise ConfigError("env_kwargs", parameters, f"{target} has its parameters in the name already; give them in one place")
    try:
        game = pyspiel.load_game(name, parameters) if parameters else pyspiel.load_game(name)
    except pyspiel.SpielError as error:
        raise ConfigError("env_kwargs", parameters, f"OpenSpiel refuses them for {name}: {error}") from error
    kind = game.get_type()
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        raise ConfigError("env", target, "a mean-field game has no players of its own; choose a game of turns or moves at once")
    if kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        fix = "it draws its chance inside of OpenSpiel, where no seed of a reset reaches, so no run on it could be repeated"
        raise ConfigError("env", target, fix)
    if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        raise ConfigError("env", target, "OpenSpiel gives no tensor of what its players see")
    return game


class _Table:
    """A game that is being played: its state, its chance, and what each player sees."""

    def __init__(self, game: Any) -> None:
        kind = game.get_type()
        self.game, self.players = game, [f"player_{i}" for i in range(game.num_players())]
        self._as_information = kind.provides_information_state_tensor
        self.size = int(
            np.prod(game.information_state_tensor_shape() if self._as_information else game.observation_tensor_shape())
        )
        self.num_actions = game.num_distinct_actions()
        self._rng = make_rng(0, "chance")
        self.state = game.new_initial_state()
        self.returns = np.zeros(len(self.players))

    def deal(self, seed: int | None) -> None:
        """Begin anew. Without a seed, chance goes on from where it was."""
        if seed is not None:
            self._rng = make_rng(seed, "chance")
        self.state = self.game.new_initial_state()
        self.returns = np.zeros(len(self.players))
        self.pay()

    def pay(self) -> dict[str, float]:
        """Draw what chance decides next; then by how much the return of each player has grown."""
        while self.state.is_chance_node():
            outcomes, chances = zip(*self.state.chance_outcomes(), strict=True)
            drawn = np.searchsorted(np.cumsum(chances), self._rng.random() * sum(chances), side="right")
            self.state.apply_action(outcomes[min(int(drawn), len(outcomes) - 1)])
        before, self.returns = self.returns, np.array(self.state.returns())
        return dict(zip(self.players, (self.returns - before).tolist(), strict=True))

    @property
    def deciding(self) -> list[str]:
        """Who decides now: one player, or all that have a legal action where they move at once; nobody once it is over."""
        if self.state.is_terminal():
            return []
        if self.state.is_simultaneous_node():
            return [player for i, player in enumerate(self.players) if self.state.legal_actions(i)]
        return [self.players[self.state.current_player()]]

    def see(self, player: str) -> Obs:
        """What a player sees, and what it may do; nothing where others decide."""
        number = self.players.index(player)
        return {"observation": self._tensor(number), MASK: self.mask(number)}

    def _tensor(self, number: int) -> Array:
        tensor = self.state.information_state_tensor if self._as_information else self.state.observation_tensor
        return np.array(tensor(number), np.float32)

    def mask(self, number: int) -> Array:
        """The legal actions of a player."""
        flags = np.zeros(self.num_actions, np.int8)
        if not self.state.is_terminal():
            flags[self.state.legal_actions(number)] = 1
        return flags

    def everything(self) -> Array:
        """What all players see, one after another: no player knows it, a critic may."""
        return np.concatenate([self._tensor(i) for i in range(len(self.players))])

    def checked(self, player: str, action: Action) -> int:
        """A legal action of a player."""
        chosen, number = int(action), self.players.index(player)
        if chosen not in self.state.legal_actions(number):
            raise DataError(f"{player} plays {chosen}, which is not legal now; its action_mask has what is")
        return chosen

    def save(self) -> State:
        """All of it as plain data."""
        return {"game": self.state.serialize(), "returns": self.returns.tolist(), "chance": rng_state(self._rng)}

    def load(self, state: State) -> None:
        """Undo `save`."""
        self.state, self.returns = self.game.deserialize_state(state["game"]), np.array(state["returns"])
        set_rng_state(self._rng, state["chance"])

    def spaces(self) -> tuple[dict[str, spaces.Space], dict[str, spaces.Space], spaces.Space]:
        """The spaces of observations and actions by player, and that of what all see."""
        seen = {
            player: spaces.Dict(
                {
                    "observation": spaces.Box(-np.inf, np.inf, (self.size,), np.float32),
                    MASK: spaces.Box(0, 1, (self.num_actions,), np.int8),
                }
            )
            for player in self.players
        }
        together = spaces.Box(-np.inf, np.inf, (self.size * len(self.players),), np.float32)
        return seen, {player: spaces.Discrete(self.num_actions) for player in self.players}, together


def _about(game: Any) -> dict[str, Any]:
    """What PettingZoo's environments say of themselves, and whether one wins what the others lose."""
    kind = game.get_type()
    return {"name": kind.short_name, "render_modes": [], ZERO_SUM: kind.utility == kind.Utility.ZERO_SUM}


class SpielTurns(AECEnv):  # type: ignore[misc]
    """A game in turns, with PettingZoo's AEC API."""

    def __init__(self, game: Any) -> None:
        super().__init__()
        self.table = _Table(game)
        self.metadata = {**_about(game), "is_parallelizable": False}
        self.possible_agents = list(self.table.players)
        self.observation_spaces, self.action_spaces, self.state_space = self.table.spaces()
        self.agents: list[str] = []
        self.agent_selection = self.possible_agents[0]

    def observation_space(self, agent: str) -> spaces.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Info | None = None) -> None:
        self.table.deal(seed)
        self.agents = list(self.possible_agents)
        self.rewards, self._cumulative_rewards = self._each(0.0), self._each(0.0)
        self.terminations, self.truncations = self._each(False), self._each(False)
        self.infos: dict[str, Info] = {agent: {} for agent in self.agents}
        (self.agent_selection,) = self.table.deciding

    def _each(self, value: Any) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, value)

    def observe(self, agent: str) -> Obs:
        return self.table.see(agent)

    def state(self) -> Array:
        """What all players see, for critics."""
        return self.table.everything()

    def step(self, action: Action) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self.table.state.apply_action(self.table.checked(agent, action))
        self.rewards = self.table.pay()
        self._accumulate_rewards()
        if self.table.state.is_terminal():
            self.terminations = self._each(True)
            self._deads_step_first()
        else:
            (self.agent_selection,) = self.table.deciding

    def get_state(self) -> State:
        """The game with its chance, who is there, and what players are still to be told."""
        kept = {"rewards": dict(self.rewards), "kept": dict(self._cumulative_rewards)}
        return {**self.table.save(), **kept, "agents": list(self.agents), "next": self.agent_selection}

    def set_state(self, state: State) -> None:
        """Undo `get_state`."""
        self.reset()
        self.table.load(state)
        self.agents, self.agent_selection = list(state["agents"]), state["next"]
        self.rewards, self._cumulative_rewards = dict(state["rewards"]), dict(state["kept"])
        self.terminations = self._each(self.table.state.is_terminal())

    def render(self) -> str:
        """The game as text."""
        return str(self.table.state)

    def close(self) -> None:
        """Nothing is open."""


class SpielAtOnce(ParallelEnv):  # type: ignore[misc]
    """A game of moves at once, with PettingZoo's parallel API. Where one player decides alone, the others wait."""

    def __init__(self, game: Any) -> None:
        self.table = _Table(game)
        self.metadata = _about(game)
        self.possible_agents = list(self.table.players)
        self.observation_spaces, self.action_spaces, self.state_space = self.table.spaces()
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space:
        return self.action_spaces[agent]

    def state(self) -> Array:
        """What all players see, for critics."""
        return self.table.everything()

    def reset(self, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, Obs], dict[str, Info]]:
        self.table.deal(seed)
        self.agents = self.table.deciding
        return {agent: self.table.see(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Action]) -> tuple[dict[str, Any], ...]:
        state, chosen = self.table.state, {agent: self.table.checked(agent, actions[agent]) for agent in self.agents}
        if state.is_simultaneous_node():
            state.apply_actions([chosen.get(player, 0) for player in self.possible_agents])
        else:
            state.apply_action(*chosen.values())
        rewards, over = self.table.pay(), state.is_terminal()
        self.agents = self.table.deciding
        told = self.possible_agents if over else list(dict.fromkeys((*chosen, *self.agents)))
        obs = {agent: self.table.see(agent) for agent in told}
        ends, cuts = dict.fromkeys(rewards, over), dict.fromkeys(rewards, False)
        return obs, rewards, ends, cuts, {agent: {} for agent in rewards}

    def get_state(self) -> State:
        """The game with its chance."""
        return self.table.save()

    def set_state(self, state: State) -> None:
        """Undo `get_state`."""
        self.table.load(state)
        self.agents = self.table.deciding

    def render(self) -> str:
        """The game as text."""
        return str(self.table.state)

    def close(self) -> None:
        """Nothing is open."""
