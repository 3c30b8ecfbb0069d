"""Built-in worlds: small, exact conversations for tests and first steps. Each is a `ChatEnv` (`core/contracts/chat.py`).

A world is made by its name (`make_world`), and loaded when it is first made.
"""

from __future__ import annotations

import inspect
from typing import Any

from runnel.core.contracts.chat import ChatEnv
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
"""Where each world is written, by its name."""


def make_world(name: str, **options: Any) -> ChatEnv:
    """The world `name`, with the options of its constructor.

    >>> make_world("guess", high=20).reset({"secret": 7}, seed=0).messages[0]["role"]
    'user'
    """
    if name not in WORLDS:
        raise ConfigError("chat", name, f"is no built-in world; choose one of {', '.join(sorted(WORLDS))}")
    made = load_object(WORLDS[name], "chat")
    known = [p.name for p in inspect.signature(made).parameters.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"{name}.{option}", value, f"is no option of this world; it has {', '.join(sorted(known))}")
    world: ChatEnv = made(**options)
    return world
