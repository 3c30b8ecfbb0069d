"""Who plays the built-in worlds in tests: by the script, at random, or with messages that no world expects."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runnel.core.contracts.chat import Turn
from runnel.llm.tasks.reverse import make_reverse
from runnel.llm.worlds import make_world
from runnel.llm.worlds.things import ATTRIBUTES, THINGS
from runnel.llm.worlds.words import WORDS

ODD: list[Mapping[str, Any]] = [
    {"role": "assistant", "content": ""},
    {"role": "assistant", "content": None},
    {"role": "assistant"},
    {"role": "assistant", "content": [{"type": "text", "text": "left 3"}, "up", 7]},
    {"role": "assistant", "content": 12},
    {"role": "assistant", "content": "9" * 5000},
    {"role": "assistant", "content": "\ud83d <|im_end|> \x00 ²٣ (((" + "x" * 20000},
    {"role": "assistant", "content": "-1 1e999 nan"},
]
SPEAK: dict[str, list[str]] = {
    "bandit": list("abcdefgh"),
    "calculator": [],
    "frozenlake": ["left", "down", "right", "up"],
    "guess": [],
    "maze": ["north", "east", "south", "west"],
    "retry": [],
    "search": ["<answer>Balcoran</answer>", "Cordunia"],
    "sokoban": ["left", "down", "right", "up"],
    "twenty_questions": [*THINGS, *ATTRIBUTES],
    "wordle": list(WORDS),
}
"""What a random player says, by world; empty: a number."""
OPTIONS = {"retry": {"task": make_reverse(num_words=200, num_eval=50)}}
Speak = Callable[[Any], "str | Mapping[str, Any]"]


def make(name: str, **options: Any) -> Any:
    """A world as it is, except that the task of `retry` is a small one, made once."""
    return make_world(name, **OPTIONS.get(name, {}), **options)


@dataclass
class Played:
    turns: list[Turn] = field(default_factory=list)
    """Of the first messages, and of each answer of the world."""
    calls: list[str] = field(default_factory=list)

    @property
    def total(self) -> dict[str, float]:
        out: dict[str, float] = {}
        for turn in self.turns:
            for name, value in turn.rewards.items():
                out[name] = out.get(name, 0.0) + value
        return out


def as_message(said: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": "assistant", "content": said} if isinstance(said, str) else said


def play(world: Any, task: Mapping[str, Any], seed: int, speak: Speak, *, limit: int = 500) -> Played:
    """A whole conversation. Calls of tools are made as whoever plays the conversation makes them: they do not reach `step`."""
    tools = {tool.name: tool.open() for tool in world.tools()} if hasattr(world, "tools") else {}
    played = Played([world.reset(task, seed=seed)])
    for _ in range(limit):
        message = as_message(speak(world))
        if calls := message.get("tool_calls"):
            for call in calls:
                function = call["function"]
                played.calls.append(str(tools[function["name"]].call(function["arguments"])))
            continue
        played.turns.append(world.step(message))
        if played.turns[-1].over:
            return played
    raise AssertionError(f"{world!r} does not end within {limit} messages")


def by_script(world: Any) -> str | Mapping[str, Any]:
    said: str | Mapping[str, Any] = world.script()
    return said


def at_random(name: str, seed: int) -> Speak:
    """A player that knows what may be said, and nothing else."""
    rng = random.Random(seed)
    words = SPEAK[name]
    return lambda world: rng.choice(words) if words else str(rng.randint(1, 100))


def plain(turn: Turn) -> str:
    """A turn as JSON, to compare."""
    return json.dumps([turn.messages, dict(turn.rewards), turn.terminated, turn.truncated, turn.key, dict(turn.counts)])
