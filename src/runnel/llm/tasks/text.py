"""Text tasks in plain Python: their prompts, demonstrations and rewards, and which prompt is next.

A user's own task is a function that returns a `TextTask`, named as `file.py:make_task`. An `ExampleSource` gives its examples
in a seeded order without end; a source that chooses by what was learned of prompts is in `difficulty.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from runnel.core.contracts.tasks import Draw, Task
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import content_id, make_rng, rng_state, set_rng_state
from runnel.core.state import State
from runnel.llm.rewards.components import RewardComponent, RewardSpec, Value, as_components
from runnel.llm.rewards.judging import scalar

ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.I)
"""What Python writes of an object that does not say what it holds: another in every process."""

COLUMN = "source"
"""The column of each example that names its source, where a run has several."""


@dataclass(frozen=True)
class Example:
    """One prompt (text, or a conversation), an answer to imitate if there is one, and columns for the reward function."""

    prompt: str | Sequence[Mapping[str, str]]
    answer: str | None = None
    columns: Mapping[str, object] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The prompt as one string, for reward functions and for reading."""
        return self.prompt if isinstance(self.prompt, str) else "\n".join(m["content"] for m in self.prompt)

    @cached_property
    def id(self) -> int:
        """A hash of all that the example holds: the same in every pass, run and process, wherever the example stands.

        >>> Example("2 + 2", "4").id == Example("2 + 2", "4").id != Example("2 + 2", "5").id
        True
        """
        prompt = self.prompt if isinstance(self.prompt, str) else [dict(m) for m in self.prompt]
        text = json.dumps([prompt, self.answer, dict(self.columns)], sort_keys=True, default=_plain)
        return content_id(text.encode())


@dataclass(frozen=True)
class TextTask:
    """Prompts with a train and an evaluation split that have no prompt in common, and a reward.

    `reward` is a function `(prompts, completions, **columns)` that returns one number (or named numbers, or None for "does not
    apply") for each completion; or the name of one; or several, as a dict by name or a list of `RewardComponent`. `channels`
    and `weights` name the numbers of a single function; components have their own. The weighted sum is maximised.
    """

    name: str
    train: Sequence[Example]
    eval: Sequence[Example]
    reward: RewardSpec
    channels: tuple[str, ...] = ("reward",)
    weights: tuple[float, ...] = (1.0,)
    max_tokens: int = 64
    """Longest completion that the task needs, in tokens."""

    def __post_init__(self) -> None:
        if len(self.channels) != len(self.weights):
            raise ConfigError("task.weights", self.weights, f"give one weight for each of the channels {self.channels}")
        weights = {c: w for part in self.components for c, w in part.weights.items()}
        object.__setattr__(self, "channels", tuple(weights))
        object.__setattr__(self, "weights", tuple(weights.values()))
        for split in ("train", "eval"):
            if not getattr(self, split):
                raise DataError(f"task {self.name!r} has no {split} examples; a task needs at least one of each split")
            if not isinstance(first := getattr(self, split)[0], Example):
                raise DataError(f"task {self.name!r}: {split} holds a {type(first).__name__}; give rl.Example(prompt, ...)")
        self._check_splits()

    def _check_splits(self) -> None:
        """Raise if an evaluation prompt is in the train split. A lazy sequence is not checked, because that would make all of
        its prompts: its author keeps the splits apart."""
        if not isinstance(self.train, list | tuple):
            return
        shared = {e.text for e in self.train} & {e.text for e in self.eval}
        if shared:
            raise DataError(
                f"task {self.name!r}: {len(shared)} evaluation prompts are in the train split, e.g. {min(shared)!r}"
            )

    def add(self, example: Example) -> None:
        """`find` knows this example too: it was added while the run goes on."""
        self._added[example.id] = example

    def find(self, task_id: int) -> Example | None:
        """The train example with this id, or one that was added. Examples are made and looked at in their order, and only as
        far as needed."""
        if task_id in self._added:
            return self._added[task_id]
        if task_id not in self._places:
            for index, example in self._rest:
                self._places.setdefault(example.id, index)
                if example.id == task_id:
                    break
        return self.train[self._places[task_id]] if task_id in self._places else None

    @cached_property
    def _added(self) -> dict[int, Example]:
        """Those that were added, by their ids."""
        return {}

    @cached_property
    def _places(self) -> dict[int, int]:
        """By the id of an example that was looked at, its place in `train`."""
        return {}

    @cached_property
    def _rest(self) -> Iterator[tuple[int, Example]]:
        """Those that were not looked at yet."""
        return iter(enumerate(self.train))

    @cached_property
    def components(self) -> tuple[RewardComponent, ...]:
        """The parts of the reward."""
        return as_components(self.reward, self.channels, self.weights)

    @property
    def token_channels(self) -> tuple[str, ...]:
        """Channels that have a number for each token: those of a level finer than a sequence."""
        return tuple(c for part in self.components if part.level != "sequence" for c in part.weights)

    def total(self, rewards: Mapping[str, Value]) -> float:
        """The number that is maximised: the weighted sum of the channels that apply (those that are not None)."""
        pairs = zip(self.channels, self.weights, strict=True)
        return sum(w * scalar(rewards[c]) for c, w in pairs if rewards[c] is not None)


def _plain(value: object) -> object:
    """A value that JSON does not know, as one that it does, and that is the same in every process."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if ADDRESS.search(text := repr(value)):
        raise DataError(
            f"a column of an example holds {text}; give it plain data, or a class of it a `__repr__` of its content"
        )
    return text


class ExampleSource:
    """A `TaskSource` that draws from a list without end, in a new seeded order in every pass."""

    uses_history = False

    def __init__(self, examples: Sequence[Example], *, seed: int, name: str = "prompts") -> None:
        self._examples = examples
        self._rng = make_rng(seed, "tasks", name)
        self._order: np.ndarray = np.empty(0, dtype=np.int64)
        self._next = 0

    def next(self, draw: Draw | None = None) -> Task:
        """The next example; `index` is its place in the list."""
        if self._next == len(self._order):
            self._order, self._next = self._rng.permutation(len(self._examples)), 0
        self._next += 1
        index = int(self._order[self._next - 1])
        return Task(self._examples[index].id, {"example": self._examples[index], "index": index})

    def snapshot(self) -> State:
        return {"rng": rng_state(self._rng), "order": self._order.copy(), "next": self._next}

    def restore(self, state: State) -> None:
        set_rng_state(self._rng, state["rng"])
        self._order, self._next = np.array(state["order"]), int(state["next"])
