"""What the built-in worlds share: their state, tasks that are made when they are asked for, and how messages are read."""

from __future__ import annotations

import copy
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar, overload

import numpy as np

from runnel.core.contracts.chat import Lane, Message, Turn
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_rng
from runnel.core.state import Settings, State

T = TypeVar("T")
HELD_OUT = 5
"""One task in so many is held out, by a hash of its content."""
MAX_TRIES = 1000
MAX_TEXT = 10_000
"""Letters of a message that are read, from its end: a long message costs no time."""


class World(ABC):
    """A conversation whose whole state is `now`: plain data, and so it can be saved and put back at any turn.

    All randomness comes from the task and the seed. A world says in `begin` and `answer` what is said; `now` has the task, the
    seed, how many messages were answered (`turns`), whether all is over, and what the world itself adds.
    """

    name: ClassVar[str]
    lane: Lane = "inline"
    max_tokens: int = 64
    """Longest reply that the world needs, in tokens."""

    def __init__(self) -> None:
        self.now: State = {}

    def reset(self, task: Settings, *, seed: int) -> Turn:
        """Begin with a task; an empty one is drawn by the seed."""
        chosen = dict(task) or self.draw(make_rng(seed, self.name, "task"))
        self.now = {"task": copy.deepcopy(chosen), "seed": int(seed), "turns": 0, "over": False}
        return self.begin(self.now["task"])

    def step(self, message: Message) -> Turn:
        if not self.now or self.now["over"]:
            raise DataError(f"world {self.name!r}: step() without a conversation; call reset() first, and after its end again")
        self.now["turns"] += 1
        turn = self.answer(said(message))
        self.now["over"] = turn.over
        return turn

    def get_state(self) -> State:
        return copy.deepcopy(self.now)

    def set_state(self, state: State) -> None:
        self.now = copy.deepcopy(state)

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> Settings:
        """A random task."""

    @abstractmethod
    def begin(self, task: Settings) -> Turn:
        """The first messages. The task is checked here, and the world's own entries of `now` are set."""

    @abstractmethod
    def answer(self, text: str) -> Turn:
        """What the text of the agent's message led to."""


class MadeTasks(Sequence[Settings]):
    """`size` tasks of one split, each made when it is asked for, from its place alone.

    A hash of a task's content decides its split, so that no task is in both; a draw of the other split is drawn again.
    """

    def __init__(self, name: str, draw: Callable[[np.random.Generator], Settings], size: int, *, held: bool) -> None:
        self._name, self._draw, self._size, self._held = name, draw, size, held

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, i: int) -> Settings: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Settings]: ...

    def __getitem__(self, i: int | slice) -> Settings | Sequence[Settings]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self._size))]
        if not -self._size <= i < self._size:
            raise IndexError(i)
        rng = make_rng(0, self._name, "held" if self._held else "train", i % self._size)
        for _ in range(MAX_TRIES):
            if is_held_out(task := self._draw(rng)) == self._held:
                return task
        raise DataError(
            f"world {self._name!r}: {MAX_TRIES} tasks in a row are of the other split; it has too few different ones"
        )


def is_held_out(task: Settings) -> bool:
    """Whether a task belongs to the held-out split."""
    return zlib.crc32(json.dumps(task, sort_keys=True).encode()) % HELD_OUT == 0


def splits(world: World, num_train: int, num_eval: int) -> tuple[Sequence[Settings], Sequence[Settings]]:
    """Tasks to train on, and others to measure with, drawn as `world.draw` says."""
    made = world.name, world.draw
    return MadeTasks(*made, num_train, held=False), MadeTasks(*made, num_eval, held=True)


def divided(items: Sequence[T], name: str) -> tuple[list[T], list[T]]:
    """A short list in two: a fifth of it (at least one) is held out, always the same."""
    order = make_rng(0, name, "split").permutation(len(items)).tolist()
    cut = max(1, len(items) // HELD_OUT)
    return [items[i] for i in sorted(order[cut:])], [items[i] for i in sorted(order[:cut])]


# ------------------------------------------------------------------------------------------------------------- reading
def said(message: Message) -> str:
    """The text of a message; of a message without text, nothing. Of a long one, its end."""
    content = message.get("content")
    if isinstance(content, list | tuple):  # parts, as some chat templates have them
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        content = "\n".join(p for p in parts if isinstance(p, str))
    return content[-MAX_TEXT:] if isinstance(content, str) else ""


def last_word(text: str, words: Sequence[str]) -> str | None:
    """The last of `words` that stands in `text` as a whole word, in capitals or not; None if none does.

    >>> last_word("Not left. I go RIGHT!", ["left", "right"]), last_word("upright", ["up", "right"])
    ('right', None)
    """
    known = {w.lower(): w for w in words}
    found = [known[w] for w in re.findall(r"[a-z]+", text.lower()) if w in known]
    return found[-1] if found else None


def last_integer(text: str) -> int | None:
    """The last whole number of at most nine digits in `text`.

    >>> last_integer("between 3 and 12, so 7."), last_integer("-4"), last_integer("none")
    (7, -4, None)
    """
    found = re.findall(r"(?<![\d.])(?:(?<!\w)-)?[0-9]{1,9}(?![0-9]|\.[0-9])", text)
    return int(found[-1]) if found else None


def said_letter(text: str, letters: str) -> str:
    """A message that is one of `letters` (with space around it, in capitals or not), as this letter; of any other, nothing.

    >>> said_letter(" B ", "abc"), said_letter("ab", "abc")
    ('b', '')
    """
    found = text.strip().lower()
    return found if len(found) == 1 and found in letters else ""


# ------------------------------------------------------------------------------------------------------------ checking
def whole(field: str, value: object, low: int, high: int) -> int:
    """An option that is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(field, value, f"must be a whole number from {low} to {high}")
    return value


def share(field: str, value: object, low: float, high: float) -> float:
    """An option that is a number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigError(field, value, f"must be a number from {low:g} to {high:g}")
    return float(value)


def switch(field: str, value: object) -> bool:
    """An option that is on or off."""
    if not isinstance(value, bool):
        raise ConfigError(field, value, "must be True or False")
    return value


def entry(task: Settings, name: str, kind: type[T], world: str) -> T:
    """An entry of a task, which has this type."""
    value = task.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise DataError(f"world {world!r}: the task {dict(task)!r} needs {name!r}, of type {kind.__name__}")
    return value


def entry_between(task: Settings, name: str, low: int, high: int, world: str) -> int:
    """An entry of a task that is a whole number from `low` to `high`."""
    value = entry(task, name, int, world)
    if not low <= value <= high:
        raise DataError(f"world {world!r}: the task's {name!r} is {value}; it must be from {low} to {high}")
    return value
