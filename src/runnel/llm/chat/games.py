"""What conversations are played in: environments of one agent as games, and what an object offers beside `reset` and `step`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any

from runnel.core.checks import name_of
from runnel.core.contracts.chat import ChatEnv, ChatGame, HasLane, HasRewards, HasState, HasTools, Lane, Message, Tool, Turn
from runnel.core.contracts.inference import Closes
from runnel.core.errors import ConfigError, DataError
from runnel.core.state import Settings, State
from runnel.llm.tokenize import messages_of

AGENT = "agent"
"""The name of the only agent of a `ChatEnv`."""
ONE_CHANNEL: Mapping[str, float] = {"reward": 1.0}


class NoGame:
    """Stands for a game that could not be made: nobody plays."""

    agents: Sequence[str] = ()
    lane: Lane = "inline"

    def reset(self, task: Settings, *, seed: int) -> Mapping[str, Turn]:
        raise NotImplementedError

    def step(self, messages: Mapping[str, Message]) -> Mapping[str, Turn]:
        raise NotImplementedError


NO_GAME: ChatGame = NoGame()


class Alone:
    """A `ChatEnv` as the `ChatGame` that it is: one with a single agent."""

    def __init__(self, env: ChatEnv) -> None:
        self.agents: Sequence[str] = (AGENT,)
        self.env = env

    def reset(self, task: Settings, *, seed: int) -> Mapping[str, Turn] | Awaitable[Mapping[str, Turn]]:
        return _alone(self.env.reset(task, seed=seed))

    def step(self, messages: Mapping[str, Message]) -> Mapping[str, Turn] | Awaitable[Mapping[str, Turn]]:
        return _alone(self.env.step(messages[AGENT]))


def _alone(turn: Turn | Awaitable[Turn]) -> Mapping[str, Turn] | Awaitable[Mapping[str, Turn]]:
    return _waited(turn) if inspect.isawaitable(turn) else {AGENT: turn}


async def _waited(turn: Awaitable[Turn]) -> Mapping[str, Turn]:
    return {AGENT: await turn}


def as_game(made: Any, *, field: str, target: object) -> ChatGame:
    """What a user's function made, as a game; a `ConfigError` for what is neither an environment nor a game."""
    for method in ("reset", "step"):
        if not callable(getattr(made, method, None)):
            fix = "an environment has reset(task, *, seed) and step(message)"
            raise ConfigError(field, target, f"it made {type(made).__name__}, which has no {method}(); {fix}")
    if not hasattr(made, "agents"):
        return Alone(made)
    agents = list(made.agents)
    if not agents or len(set(agents)) < len(agents) or not all(isinstance(a, str) and a for a in agents):
        raise ConfigError(field, target, f"its agents are {agents!r}; give a list of different names")
    game: ChatGame = made
    return game


def own(game: ChatGame) -> object:
    """The object that a user wrote."""
    return game.env if isinstance(game, Alone) else game


def lane_of(game: ChatGame) -> Lane:
    """Where its calls run."""
    owner = own(game)
    if isinstance(owner, HasLane):
        return owner.lane
    methods = (getattr(owner, name) for name in ("reset", "step"))
    return "async" if any(inspect.iscoroutinefunction(method) for method in methods) else "thread"


def channels_of(game: ChatGame) -> dict[str, float]:
    """Its reward channels, with their weights in what is maximised."""
    owner = own(game)
    found = dict(owner.rewards) if isinstance(owner, HasRewards) else dict(ONE_CHANNEL)
    if not found or not all(isinstance(name, str) and name and "/" not in name for name in found):
        fix = f"its rewards are {found!r}; name each channel (no slash), with its weight"
        raise ConfigError("chat", name_of(owner), fix)
    return found


def tools_of_game(game: ChatGame) -> Sequence[Tool]:
    """The tools that the environment offers in this conversation."""
    owner = own(game)
    return owner.tools() if isinstance(owner, HasTools) else ()


def saved(game: ChatGame) -> State | None:
    """The state of a game that can be saved; None of others, which are played again."""
    owner = own(game)
    return dict(owner.get_state()) if isinstance(owner, HasState) else None


def put_back(game: ChatGame, state: State) -> None:
    """Give a game the state that `saved` told."""
    owner = own(game)
    assert isinstance(owner, HasState), "it was saved by get_state"
    owner.set_state(state)


def close_game(game: ChatGame) -> object:
    """Let go of what the game holds; what is returned may have to be awaited."""
    owner = own(game)
    return owner.close() if isinstance(owner, Closes) else None  # type: ignore[func-returns-value]


def checked_turns(game: ChatGame, turns: object, channels: Mapping[str, float]) -> dict[str, Turn]:
    """What `reset` or `step` gave, or a `DataError` in words."""
    if not isinstance(turns, Mapping):
        raise DataError(f"the environment gave {type(turns).__name__} instead of {_wanted(game)}")
    for agent, turn in turns.items():
        if not isinstance(turn, Turn):
            raise DataError(f"the environment gave {type(turn).__name__} instead of {_wanted(game)}")
        if agent not in game.agents:
            raise DataError(f"the environment gave a Turn to {agent!r}; its agents are {', '.join(game.agents)}")
        _check_channels(turn, channels)
    return dict(turns)


def _check_channels(turn: Turn, channels: Mapping[str, float]) -> None:
    if unknown := sorted(set(turn.earned) - set(channels)):
        has = f"has {', '.join(channels)}; name it in its attribute `rewards`" if channels else "pays nothing"
        raise DataError(f"reward channel {unknown[0]!r} is unknown: the environment {has}")


def check_turn(turn: Turn, channels: Mapping[str, float]) -> None:
    """Raise a `DataError` for a turn, of an environment or of a tool, that cannot be told, counted or saved."""
    _check_channels(turn, channels)
    if turn.heard:
        messages_of(turn.heard)
    try:
        json.dumps(turn.heard, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"a message is no plain data: {error}; give texts, finite numbers, lists and dicts") from error
    if not isinstance(turn.key, str):
        raise DataError(f"the key of a turn is a {type(turn.key).__name__}; give a text")
    if odd := [name for name, n in turn.counts.items() if not isinstance(name, str) or type(n) is not int]:
        raise DataError(f"the count {odd[0]!r} of a turn is {turn.counts[odd[0]]!r}; give a whole number under a name")


def _wanted(game: ChatGame) -> str:
    if isinstance(game, Alone):
        return "a Turn; return Turn(text), or Turn(text, reward, terminated=True) at the end"
    return "a Turn for each agent; return {agent: Turn(text)}"


def plain_turns(turns: Mapping[str, Turn]) -> str:
    """What turns say, as one text: two plays that went alike have the same."""
    said = {a: [list(t.heard), dict(t.earned), t.terminated, t.truncated, t.key] for a, t in turns.items()}
    return json.dumps(said, sort_keys=True, default=repr)
