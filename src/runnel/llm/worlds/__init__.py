"""Built-in worlds: small, exact conversations for tests and first steps. Each is a `ChatEnv`, or a `ChatGame` of several agents
(`core/contracts/chat.py`).

A world is made by its name (`make_world`), and loaded when it is first made.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from runnel.core.contracts.chat import ChatEnv, ChatGame
from runnel.core.errors import ConfigError
from runnel.core.resolve import load_object

WORLDS: dict[str, str] = {
    "bandit": "runnel.llm.worlds.bandit:Bandit",
    "calculator": "runnel.llm.worlds.calculator:Calculator",
    "frozenlake": "runnel.llm.worlds.frozenlake:FrozenLake",
    "guess": "runnel.llm.worlds.guess:Guess",
    "maze": "runnel.llm.worlds.maze:Maze",
    "retry": "runnel.llm.worlds.retry:Retry",
    "search": "runnel.llm.worlds.search:Search",
    "sokoban": "runnel.llm.worlds.sokoban:Sokoban",
    "twenty_questions": "runnel.llm.worlds.twenty_questions:TwentyQuestions",
    "wordle": "runnel.llm.worlds.wordle:Wordle",
}
"""Where each world of one agent is written, by its name."""
GAMES: dict[str, str] = {"signal": "runnel.llm.worlds.signal:Signal"}
"""Where each world of several agents is written, by its name."""


def make_world(name: str, **options: Any) -> ChatEnv:
    """The world `name`, with the options of its constructor.

    >>> make_world("guess", high=20).reset({"secret": 7}, seed=0).messages[0]["role"]
    'user'
    """
    if name not in WORLDS:
        raise ConfigError("chat", name, f"is no built-in world; choose one of {', '.join(sorted(WORLDS))}")
    world: ChatEnv = _made(name, WORLDS[name], options)
    return world


def make_game(name: str, **options: Any) -> ChatGame:
    """The world of several agents `name`, with the options of its constructor.

    >>> sorted(make_game("signal", num=2).reset({"secret": 2}, seed=0))
    ['speaker']
    """
    if name not in GAMES:
        raise ConfigError("chat", name, f"is no built-in world of several agents; choose one of {', '.join(sorted(GAMES))}")
    game: ChatGame = _made(name, GAMES[name], options)
    return game


def _made(name: str, where: str, options: Mapping[str, Any]) -> Any:
    made = load_object(where, "chat")
    known = [p.name for p in inspect.signature(made).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"{name}.{option}", value, f"is no option of this world; it has {', '.join(sorted(known))}")
    return made(**options)
