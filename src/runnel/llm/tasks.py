"""Text tasks in plain Python: where prompts come from, what a demonstration looks like, and what a completion is worth.

A user's own task is a function that returns a `TextTask`, named as `file.py:make_task`.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError, DataError
from runnel.core.protocols import State, Task
from runnel.core.resolve import is_reference, load_object
from runnel.core.rng import make_rng, rng_state, set_rng_state

Reward = float | dict[str, float] | None
RewardFn = Callable[..., Sequence[Reward] | Awaitable[Sequence[Reward]]]


@dataclass(frozen=True)
class Example:
    """One prompt (text, or a conversation), an answer to imitate if there is one, and columns for the reward function."""

    prompt: str | Sequence[Mapping[str, str]]
    answer: str | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The prompt as one string, for reward functions and for reading."""
        return self.prompt if isinstance(self.prompt, str) else "\n".join(m["content"] for m in self.prompt)


@dataclass(frozen=True)
class TextTask:
    """Prompts with a train and an evaluation split that share nothing, and a reward function.

    `reward(prompts, completions, **columns)` returns one number (or named numbers, or None for "no verdict") for each
    completion. `channels` names the numbers; their sum, weighted by `weights`, is what is maximised.
    """

    name: str
    train: Sequence[Example]
    eval: Sequence[Example]
    reward: RewardFn
    channels: tuple[str, ...] = ("reward",)
    weights: tuple[float, ...] = (1.0,)
    max_tokens: int = 64
    """Longest completion that the task needs, in tokens."""

    def __post_init__(self) -> None:
        if len(self.channels) != len(self.weights):
            raise ConfigError("task.weights", self.weights, f"give one weight for each of the channels {self.channels}")
        if not self.train or not self.eval:
            raise ConfigError("task.train", len(self.train), "a task needs at least one train and one eval example")
        shared = {e.text for e in self.train} & {e.text for e in self.eval}
        if shared:
            raise DataError(
                f"task {self.name!r}: {len(shared)} evaluation prompts are in the train split, e.g. {min(shared)!r}"
            )

    def total(self, rewards: Mapping[str, float]) -> float:
        """The number that is maximised, from a reward's channels."""
        return sum(w * rewards[c] for c, w in zip(self.channels, self.weights, strict=True))


class ExampleSource:
    """A `TaskSource` that draws from a list without end: a new seeded order in every pass. A task's id is its place there.

    `report` keeps the last outcome and the number of visits of each example (curricula build on them).
    """

    def __init__(self, examples: Sequence[Example], *, seed: int, name: str = "prompts") -> None:
        self._examples = examples
        self._rng = make_rng(seed, "tasks", name)
        self._order: np.ndarray = np.empty(0, dtype=np.int64)
        self._next = 0
        self.num_visits = np.zeros(len(examples), dtype=np.int64)
        self.last_reward = np.full(len(examples), np.nan)

    def next(self, n: int) -> list[Task]:
        ids = [self._draw() for _ in range(n)]
        return [Task(i, {"example": self._examples[i]}) for i in ids]

    def report(self, task_id: int, outcome: Mapping[str, float]) -> None:
        self.num_visits[task_id] += 1
        self.last_reward[task_id] = outcome["reward"]

    def snapshot(self) -> State:
        return {
            "rng": rng_state(self._rng),
            "order": self._order.copy(),
            "next": self._next,
            "num_visits": self.num_visits.copy(),
            "last_reward": self.last_reward.copy(),
        }

    def restore(self, state: State) -> None:
        set_rng_state(self._rng, state["rng"])
        self._order, self._next = np.array(state["order"]), int(state["next"])
        self.num_visits, self.last_reward = np.array(state["num_visits"]), np.array(state["last_reward"])

    def _draw(self) -> int:
        if self._next == len(self._order):
            self._order, self._next = self._rng.permutation(len(self._examples)), 0
        self._next += 1
        return int(self._order[self._next - 1])


def reverse_reward(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """1 for the prompt's word written backwards, else 0.

    >>> reverse_reward(["abc", "abc"], ["cba", "abc"])
    [1.0, 0.0]
    """
    return [float(completion == prompt[::-1]) for prompt, completion in zip(prompts, completions, strict=True)]


def make_reverse(*, num_words: int = 10000, num_eval: int = 512, min_letters: int = 3, max_letters: int = 6) -> TextTask:
    """Write a word backwards; the words of the evaluation are never seen in training.

    Words come from a seeded syllable model; a hash of the word decides its split.
    """
    train: list[Example] = []
    held: list[Example] = []
    rng = make_rng(0, "reverse", "words")
    seen: set[str] = set()
    while len(train) < num_words or len(held) < num_eval:
        word = _word(rng, min_letters, max_letters)
        if word in seen:
            continue
        seen.add(word)
        split, limit = (held, num_eval) if zlib.crc32(word.encode()) % 10 == 0 else (train, num_words)
        if len(split) < limit:
            split.append(Example(word, word[::-1]))
    return TextTask("reverse", train, held, reverse_reward, channels=("exact",), max_tokens=max_letters + 2)


def _word(rng: np.random.Generator, low: int, high: int) -> str:
    """Syllables (consonant, vowel, sometimes another consonant), cut to a length that was drawn first."""
    consonants = iter("bcdfghjklmnprstvwz"[i] for i in rng.permutation(18).tolist())
    vowels = iter("aeiouy"[i] for i in rng.permutation(6).tolist())
    size, word = int(rng.integers(low, high + 1)), ""
    for closed in rng.random(size) < 0.4:
        word += next(consonants) + next(vowels) + (next(consonants) if closed else "")
        if len(word) >= size:
            break
    return word[:size]


TASKS: Mapping[str, Callable[[], TextTask]] = {"reverse": make_reverse}


def make_task(name: str | Callable[[], TextTask]) -> TextTask:
    """A built-in task by name, or the user's own: a function, or `file.py:make_task` or `module:make_task`."""
    if isinstance(name, str) and name in TASKS:
        return TASKS[name]()
    if isinstance(name, str) and not is_reference(name):
        raise ConfigError("task", name, f"choose one of {', '.join(sorted(TASKS))}, or write file.py:make_task")
    task = load_object(name, "task")() if isinstance(name, str) else name()
    if not isinstance(task, TextTask):
        raise ConfigError("task", name, f"it returned {type(task).__name__}; return a runnel.llm.tasks.TextTask")
    return task
