"""Text tasks in plain Python: their prompts, demonstrations and rewards, and which prompt is next.

A user's own task is a function that returns a `TextTask`, named as `file.py:make_task`. A source gives its examples in a seeded
order without end: all of them, or those of intermediate difficulty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.tasks import Task
from runnel.core.errors import ConfigError, DataError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_rng, rng_state, set_rng_state
from runnel.core.state import State
from runnel.llm.rewards.components import RewardComponent, RewardSpec, Value, as_components
from runnel.llm.rewards.judging import scalar


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


class ExampleSource:
    """A `TaskSource` that draws from a list without end, in a new seeded order in every pass. A task's id is its list index.

    `report` keeps the last reward and the number of visits of each example, for curricula.
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


@dataclass(frozen=True)
class DifficultyConfig:
    """The online difficulty filter: prompts that are always or never solved teach nothing, so they are skipped for a while."""

    on_resume: ClassVar[OnResume] = may_change(
        "low", "high", "momentum", "retry_after", then="counts from the next prompt on"
    ) | stays("on", why="the accuracy of prompts is known from the start, or not at all")

    on: bool = False
    """Play prompts of intermediate accuracy, and new ones; others only now and then."""
    low: float = 0.1
    """Lowest mean reward of a prompt that is played in every pass."""
    high: float = 0.9
    """Highest mean reward of such a prompt."""
    momentum: float = bounded(0.5, at_least=0, below=1)
    """How much of a prompt's mean reward each new visit keeps of the visits before."""
    retry_after: int = bounded(1000, at_least=1)
    """A prompt outside of the band is tried again after so many other prompts."""

    def __post_init__(self) -> None:
        check_bounds(self, "filter.")
        if not self.low <= self.high:
            raise ConfigError("filter.low", self.low, f"must not be above filter.high = {self.high}")


class DifficultySource(ExampleSource):
    """An `ExampleSource` that skips prompts outside of a band of mean reward (the batch is filled with others).

    `success` is each prompt's running mean reward, `last_drawn` the count of draws when it was last played; both are part of a
    checkpoint. If no prompt of a whole pass may be played, the one that was played longest ago is.
    """

    def __init__(self, examples: Sequence[Example], config: DifficultyConfig, *, seed: int, name: str = "prompts") -> None:
        super().__init__(examples, seed=seed, name=name)
        self._config = config
        self.success = np.full(len(examples), np.nan)
        self.last_drawn = np.full(len(examples), -1, dtype=np.int64)
        self.num_drawn = 0
        self.num_skipped = 0

    def report(self, task_id: int, outcome: Mapping[str, float]) -> None:
        super().report(task_id, outcome)
        before, keep = self.success[task_id], self._config.momentum
        self.success[task_id] = outcome["reward"] if np.isnan(before) else keep * before + (1 - keep) * outcome["reward"]

    def snapshot(self) -> State:
        counts = {"num_drawn": self.num_drawn, "num_skipped": self.num_skipped}
        return {**super().snapshot(), **counts, "success": self.success.copy(), "last_drawn": self.last_drawn.copy()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self.success, self.last_drawn = np.array(state["success"]), np.array(state["last_drawn"])
        self.num_drawn, self.num_skipped = int(state["num_drawn"]), int(state["num_skipped"])

    def _draw(self) -> int:
        for _ in range(len(self.success)):
            i = super()._draw()
            if self._may_play(i):
                return self._drawn(i)
            self.num_skipped += 1
        return self._drawn(int(self.last_drawn.argmin()))

    def _may_play(self, i: int) -> bool:
        c, mean = self._config, self.success[i]
        rested = self.num_drawn - self.last_drawn[i] >= c.retry_after
        return bool(np.isnan(mean) or c.low <= mean <= c.high or rested)

    def _drawn(self, i: int) -> int:
        self.last_drawn[i] = self.num_drawn
        self.num_drawn += 1
        return i
