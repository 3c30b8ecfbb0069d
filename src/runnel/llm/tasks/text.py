"""Text tasks in plain Python: where prompts come from, what a demonstration looks like, and what a completion is worth.

A user's own task is a function that returns a `TextTask`, named as `file.py:make_task`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from runnel.core.errors import ConfigError, DataError
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
    """Prompts with a train and an evaluation split that share nothing, and a reward.

    `reward` is a function `(prompts, completions, **columns)` that returns one number (or named numbers, or None for "does not
    apply") a completion; or the name of one; or several, as a dict by name or a list of `RewardComponent`. `channels` and
    `weights` name the numbers of a single function; components bring their own. The weighted sum is what is maximised.
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
        """No evaluation prompt may be in the train split. Prompts of a lazy sequence are not all made for that: their
        author keeps the splits apart."""
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
        """Channels that have a number for each token: those finer than a sequence."""
        return tuple(c for part in self.components if part.level != "sequence" for c in part.weights)

    def total(self, rewards: Mapping[str, Value]) -> float:
        """The number that is maximised: the weighted sum of the channels that apply (those that are not None)."""
        pairs = zip(self.channels, self.weights, strict=True)
        return sum(w * scalar(rewards[c]) for c, w in pairs if rewards[c] is not None)
