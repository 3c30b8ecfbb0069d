"""What conversations are played in: environments of one agent as games, and what an object offers beside `reset` and `step`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Mapping, Sequence
from copy import deepcopy
from typing import Any, get_args

import numpy as np

from runnel.core.checks import check_text, name_of, short
from runnel.core.codec import encode
from runnel.core.contracts.chat import ChatEnv, ChatGame, HasLane, HasRewards, HasState, HasTools, Lane, Message, Tool, Turn
from runnel.core.contracts.inference import Closes
from runnel.core.errors import CheckpointError, ConfigError, DataError
from runnel.core.state import Settings, State
from runnel.llm.tokenize import messages_of

AGENT = "agent"
"""The name of the only agent of a `ChatEnv`."""
ONE_CHANNEL: Mapping[str, float] = {"reward": 1.0}
MOST = 10**9
"""What may be counted at most in one turn."""


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
    if isinstance(made, HasLane) and made.lane not in get_args(Lane):
        raise ConfigError(field, target, f"its lane is {made.lane!r}; use one of {', '.join(get_args(Lane))}, or leave it out")
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


def begin_game(game: ChatGame, task: Settings, seed: int) -> object:
    """Reset a game; what is returned may have to be awaited. The task is a copy, because other conversations have it too, and
    an environment may use it up."""
    return game.reset(deepcopy(task), seed=seed)


def can_be_saved(game: ChatGame) -> bool:
    """Whether a game has a state that can be saved. Others are played again."""
    return isinstance(own(game), HasState)


def saved(game: ChatGame) -> object:
    """The state of a game; what is returned may have to be awaited."""
    owner = own(game)
    assert isinstance(owner, HasState), "asked only of those that can be saved"
    return owner.get_state()


def why_unsaved(state: object) -> str:
    """Why a state is none that a checkpoint can hold; empty if it is one."""
    if not isinstance(state, Mapping):
        return f"get_state gave {short(state)}; give a dict of plain data"
    try:
        encode(state, {})
    except CheckpointError as error:
        return str(error)
    return ""


def put_back(game: ChatGame, state: State) -> object:
    """Give a game the state that `saved` told; what is returned may have to be awaited."""
    owner = own(game)
    assert isinstance(owner, HasState), "it was saved by get_state"
    return owner.set_state(state)  # type: ignore[func-returns-value]


def close_game(game: ChatGame) -> object:
    """Let go of what the game holds; what is returned may have to be awaited."""
    owner = own(game)
    return owner.close() if isinstance(owner, Closes) else None  # type: ignore[func-returns-value]


def own_turns(game: ChatGame, turns: object, channels: Mapping[str, float]) -> dict[str, Turn]:
    """What `reset` or `step` gave, as copies (`own_turn`)."""
    return {agent: own_turn(turn, channels) for agent, turn in checked_turns(game, turns, channels).items()}


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


def own_turn(turn: Turn, channels: Mapping[str, float]) -> Turn:
    """A copy of a turn, of an environment or of a tool, in plain data: whatever its author changes later, it stays as it is. A
    `DataError` for a turn that cannot be told, counted or saved."""
    _check_channels(turn, channels)
    if turn.heard:
        messages_of(turn.heard)
    try:
        messages = json.loads(json.dumps(turn.heard, ensure_ascii=False, allow_nan=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"a message is no plain data: {error}; give texts, finite numbers, lists and dicts") from error
    terminated, truncated = _truth("terminated", turn.terminated), _truth("truncated", turn.truncated)
    return Turn(messages, turn.earned, terminated, truncated, key=_key(turn.key), counts=_counts(turn.counts))


def _truth(name: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise DataError(f"{name} of a turn is {short(value)}; give True or False")
    return bool(value)


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise DataError(f"the key of a turn is a {type(key).__name__}; give a text")
    check_text(key, "the key of a turn")
    return str.__str__(key)


def _counts(counts: object) -> dict[str, int]:
    if not isinstance(counts, Mapping):
        raise DataError(f"the counts of a turn are {short(counts)}; give a dict of names and whole numbers")
    for name, n in counts.items():
        if not isinstance(name, str) or type(n) is not int or not 0 <= n <= MOST:
            raise DataError(f"the count {short(name)} of a turn is {short(n)}; give a whole number (0 or more) under a name")
        check_text(name, "the name of a count")
    return dict(counts)


def _wanted(game: ChatGame) -> str:
    if isinstance(game, Alone):
        return "a Turn; return Turn(text), or Turn(text, reward, terminated=True) at the end"
    return "a Turn for each agent; return {agent: Turn(text)}"


def plain_turns(turns: Mapping[str, Turn]) -> str:
    """What turns say, as one text: two plays that went alike have the same."""
    said = {a: [list(t.heard), dict(t.earned), t.terminated, t.truncated, t.key] for a, t in turns.items()}
    return json.dumps(said, sort_keys=True, default=repr)
