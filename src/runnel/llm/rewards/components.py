"""What a completion is worth, in named and weighted parts: one `RewardComponent` a part, each logged by itself."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from runnel.core.calls.pool import CallSpec, Run
from runnel.core.errors import ConfigError
from runnel.core.resolve import is_reference

Reward = float | Mapping[str, float] | Sequence[object] | None
Rewards = Sequence[Reward]
RewardFn = Callable[..., Rewards | Awaitable[Rewards]]
Level = Literal["sequence", "token", "segment", "turn"]
Value = float | list[Any] | None
"""A number (sequence level); numbers by token or turn; `[start, end, number]` by segment; None: does not apply."""


@dataclass(frozen=True)
class Builtin:
    """A reward of runnel: its function, how it runs, how many calls at once (0: the usual number), its own time limit (0: the
    pool's), and whether it takes prompts with their roles."""

    target: str
    run: Run
    workers: int = 0
    timeout_s: float = 0.0
    messages: bool = False


_HERE = "runnel.llm.rewards"
COLUMNS = frozenset((
    "answer", "tests", "cases", "index", "data_source", "ground_truth", "reward_model", "extra_info",
    "completion_ids", "prompt_messages",
))  # fmt: skip
"""Arguments of the built-in rewards that are columns (one value for each completion), and therefore no options."""
BUILTIN: Mapping[str, Builtin] = {
    "math": Builtin(f"{_HERE}.mathematics:math_answer", "process"),
    "exact": Builtin(f"{_HERE}.verifiers:exact_match", "inline"),
    "regex": Builtin(f"{_HERE}.verifiers:regex_match", "process"),
    "format": Builtin(f"{_HERE}.verifiers:tag_format", "inline"),
    "length": Builtin(f"{_HERE}.verifiers:length", "inline"),
    "python_tests": Builtin(f"{_HERE}.code:python_tests", "thread", workers=2, timeout_s=600.0),
    "reward_model": Builtin(f"{_HERE}.scorers:reward_model", "thread", messages=True),
    "judge": Builtin(f"{_HERE}.scorers:judge", "thread", workers=8, timeout_s=120.0),
    "verl": Builtin(f"{_HERE}.adapters:verl_score", "process"),
    "reasoning_gym": Builtin(f"{_HERE}.gym:score", "process"),
}
OWN = Builtin("", "auto")


@dataclass(frozen=True)
class RewardComponent:
    """One part of a reward.

    `fn(prompts, completions, **columns)` returns one verdict a completion: a number, a dict of numbers (see `channels`), or
    None for "does not apply", which leaves this part out of that completion's total. It may be `async`. A name stands for a
    built-in (`BUILTIN`), `module:function` or `file.py:function`.
    """

    name: str
    fn: RewardFn | str
    weight: float = 1.0
    """Factor in the sum that is maximised; 0 only logs it."""
    level: Level = "sequence"
    """sequence: a number a completion. token: a list, one for each token (the column `completion_ids` has them). segment: a
    list of `[start, end, number]` in characters, each counted at the last token of its span. turn: a list, one a turn."""
    run: Run = "auto"
    """Where the function runs (`CallSpec.run`). auto: as the built-in says; process for names, async for `async def` functions,
    thread for other functions."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Keyword arguments that are the same in every call; a column of the same name replaces one."""
    channels: Mapping[str, float] = field(default_factory=dict)
    """For a function that returns dicts: the names in them, with their weights, instead of `name` and `weight`."""
    workers: int = 0
    """Calls at once; 0 takes what the built-in says, else 64 for async and 1 otherwise."""
    tokens: bool = False
    """Give the function the column `completion_ids` (finer levels always get it)."""
    messages: bool = False
    """Give the function the column `prompt_messages`: prompts as lists of messages, with their roles."""
    timeout_s: float = 0.0
    """Most seconds of a try; 0 takes what the built-in says, else the pool's."""
    retries: int = 0
    """Tries after the first one, if that raised, took too long or lost its process (`CallSpec.retries`)."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise ConfigError("reward.name", self.name, "give each component a name without a slash")
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise ConfigError(f"reward.{name}.weight", weight, "use a finite number")
        if self.level != "sequence" and self.channels:
            raise ConfigError(f"reward.{self.name}.level", self.level, "dicts of numbers are for level sequence")
        self.call_spec()  # a wrong setting or an unknown name fails here, and not in a worker

    @cached_property
    def weights(self) -> dict[str, float]:
        """Weight by channel."""
        return dict(self.channels) or {self.name: self.weight}

    def call_spec(self, timeout_s: float = 30.0) -> CallSpec:
        """How a pool calls the function; `timeout_s` is that of the pool. What is not set is as the built-in says."""
        known = self._known
        if isinstance(self.fn, str) and not known.target and not is_reference(self.fn):
            fix = f"unknown; use one of {', '.join(BUILTIN)}, or module:function, or file.py:function"
            raise ConfigError(f"reward.{self.name}", self.fn, fix)
        own_s = self.timeout_s or known.timeout_s
        return CallSpec(
            f"reward.{self.name}",
            known.target or self.fn,
            options=self.options,
            run=known.run if self.run == "auto" else self.run,
            workers=self.workers or known.workers,
            timeout_s=own_s or timeout_s,
            retries=self.retries,
            limit_field=f"timeout_s of reward {self.name!r}" if own_s else "data.reward_timeout_s",
        )

    def resolved(self) -> RewardComponent:
        """A copy with `run`, `workers`, `timeout_s` and `messages` filled in from the built-in, or from the usual values."""
        spec, known = self.call_spec().resolved(), self._known
        timeout_s, messages = self.timeout_s or known.timeout_s, self.messages or known.messages
        return replace(self, run=spec.run, workers=spec.workers, timeout_s=timeout_s, messages=messages)

    @property
    def _known(self) -> Builtin:
        """The built-in reward that the name stands for; one without a function for anything else."""
        return BUILTIN.get(self.fn, OWN) if isinstance(self.fn, str) else OWN

    def known_options(self) -> tuple[str, ...] | None:
        """Names that `options` may have: keyword arguments of the function. None: a function of your own takes any (`**`)."""
        kinds = inspect.signature(self.call_spec().loaded()).parameters.values()
        if self.fn not in BUILTIN and any(p.kind is inspect.Parameter.VAR_KEYWORD for p in kinds):
            return None
        named = [p.name for p in kinds if p.kind is inspect.Parameter.KEYWORD_ONLY]
        return tuple(name for name in named if self.fn not in BUILTIN or name not in COLUMNS)

    def function(self) -> RewardFn:
        """The function itself, loaded, with its options. Columns replace options of the same name."""
        return self.call_spec().function()


RewardSpec = RewardFn | str | RewardComponent | Sequence[RewardComponent] | Mapping[str, RewardFn | str | RewardComponent]


def as_components(
    reward: RewardSpec, channels: Sequence[str] = ("reward",), weights: Sequence[float] = (1.0,)
) -> tuple[RewardComponent, ...]:
    """The reward of a task as components: it may be a function (with its `channels`), a component, a list, a dict by name."""
    if isinstance(reward, RewardComponent):
        found = [reward]
    elif isinstance(reward, Mapping):
        found = [_named(name, part) for name, part in reward.items()]
    elif isinstance(reward, str) or callable(reward):
        pairs = dict(zip(channels, weights, strict=True))
        several = {} if len(pairs) == 1 else pairs
        found = [RewardComponent(channels[0], reward, weights[0], channels=several)]
    elif isinstance(reward, list | tuple):
        found = list(reward)
    else:
        fix = "give a function, a name, a RewardComponent, a list of those, or a dict of any by name"
        raise ConfigError("task.reward", reward, fix)
    if wrong := [part for part in found if not isinstance(part, RewardComponent)]:
        raise ConfigError("task.reward", wrong[0], "a list holds RewardComponents; give a dict for functions by name")
    names = [name for part in found for name in part.weights]
    if not names or len(set(names)) < len(names):
        raise ConfigError("task.reward", names, "give at least one component, and each a name of its own")
    return tuple(found)


def _named(name: str, part: RewardFn | str | RewardComponent) -> RewardComponent:
    return replace(part, name=name) if isinstance(part, RewardComponent) else RewardComponent(name, part)
