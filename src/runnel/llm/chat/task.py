"""Conversations as a task: what is played, with which tools, and what it pays.

A `ChatTask` is a `TextTask` whose examples are tasks of an environment. A text task with tools is one, too: its environment
shows the prompt and ends at the first message without a call, which the task's own reward judges.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from runnel.core.calls.pool import call
from runnel.core.checks import name_of
from runnel.core.contracts.chat import ChatGame, HasTasks, Message, Tool, Turn
from runnel.core.errors import ConfigError, DataError
from runnel.core.hints import closest
from runnel.core.resolve import called, is_reference, load_object
from runnel.core.state import Settings
from runnel.llm.chat.config import TalkConfig
from runnel.llm.chat.games import as_game, channels_of, close_game, own
from runnel.llm.rewards.components import RewardComponent
from runnel.llm.tasks.text import Example, TextTask
from runnel.llm.tokenize import messages_of
from runnel.llm.worlds import GAMES, WORLDS, make_game, make_world

TASK, SEED = "task", "seed"
"""Columns of an example: what `reset` gets, and the seed of the environment where that alone tells one task from another."""
NUM_TRAIN, NUM_EVAL = 10_000, 256
"""Seeds that are played of an environment without tasks."""
MAX_TOKENS = 256
"""Longest reply of an environment that does not say it (`max_tokens`)."""
Maker = Callable[[], Any]


@dataclass(frozen=True)
class ChatTask(TextTask):
    """Conversations. `reward` judges the last message of each, where it is a text task with tools; an environment pays by
    itself, and has none."""

    max_tokens: int = MAX_TOKENS
    """Longest reply, in tokens."""
    make: Maker = lambda: Answering()
    """Makes the environment of one conversation."""
    tools: Sequence[Tool] = ()
    """What the model may call, beside the tools of the environment."""
    talk: TalkConfig = field(default_factory=TalkConfig)
    turn_channels: Mapping[str, float] = field(default_factory=dict)
    """Channels that the environment pays in, by turn, and their weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if shared := sorted(set(self.channels) & set(self.turn_channels)):
            raise ConfigError("chat", self.name, f"channel {shared[0]!r} is both the environment's and the task's; rename one")
        object.__setattr__(self, "channels", (*self.turn_channels, *self.channels))
        object.__setattr__(self, "weights", (*self.turn_channels.values(), *self.weights))

    @cached_property
    def components(self) -> tuple[RewardComponent, ...]:
        """The parts of the reward that judges last messages; none where the environment pays."""
        return super().components if self.judged else ()

    @property
    def judged(self) -> bool:
        """Whether last messages are judged by the task's reward."""
        return not self.turn_channels

    @cached_property
    def agents(self) -> tuple[str, ...]:
        """Who speaks in a conversation."""
        game = as_game(self.make(), field="chat", target=self.name)
        call(close_game, (game,), {})
        return tuple(game.agents)

    def game(self, example: Example) -> ChatGame:
        """A new environment for one conversation."""
        return as_game(self.make(), field="chat", target=self.name)

    def settings(self, example: Example) -> Settings:
        """What `reset` gets."""
        if self.judged:
            return {"messages": messages_of(example.prompt)}
        task: Settings = example.columns[TASK]  # type: ignore[assignment]
        return task


class Answering:
    """A text task as an environment: the prompt, and then whatever is said is the answer."""

    lane = "inline"

    def reset(self, task: Settings, *, seed: int) -> Turn:
        return Turn(task["messages"])

    def step(self, message: Message) -> Turn:
        return Turn(terminated=True)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """It has none."""


def with_tools(task: TextTask, tools: Sequence[Tool], talk: TalkConfig) -> ChatTask:
    """A text task whose model may call `tools` before it answers."""
    if fine := [part.name for part in task.components if part.level != "sequence"]:
        fix = "rewards of a conversation judge its last message as a whole; use level='sequence'"
        raise ConfigError("tools", [tool.name for tool in tools], f"reward {fine[0]!r} judges parts of a completion: {fix}")
    return ChatTask(
        task.name,
        task.train,
        task.eval,
        task.components,
        max_tokens=max(task.max_tokens, MAX_TOKENS),
        make=Answering,
        tools=tools,
        talk=talk,
    )


def make_chat_task(
    spec: str | Maker, *, talk: TalkConfig, tools: Sequence[Tool] = (), settings: Settings | None = None
) -> ChatTask:
    """The task of an environment: a built-in world by name, or the user's own, as `file.py:make_env`, `module:make_env`, or a
    function or class that makes one."""
    make = maker_of(spec, settings or {})
    name = spec if isinstance(spec, str) else name_of(spec)
    game = as_game(called(make, field="chat", target=name, how="make_env()"), field="chat", target=name)
    train, held_out = _examples(game)
    owner = own(game)
    return ChatTask(
        name.rpartition(":")[2] or name,
        train,
        held_out,
        (),
        max_tokens=int(getattr(owner, "max_tokens", MAX_TOKENS)),
        make=make,
        tools=tools,
        talk=talk,
        turn_channels=channels_of(game),
    )


def maker_of(spec: str | Maker, settings: Settings) -> Maker:
    """What makes the environment of one conversation."""
    if isinstance(spec, str) and spec in WORLDS:
        return lambda: make_world(spec, **settings)
    if isinstance(spec, str) and spec in GAMES:
        return lambda: make_game(spec, **settings)
    if isinstance(spec, str) and not is_reference(spec):
        known = sorted({**WORLDS, **GAMES})
        fix = f"{closest(spec, known)}choose one of {', '.join(known)}, or write file.py:make_env"
        raise ConfigError("chat", spec, f"write {spec}:NAME, of what makes the environment" if spec.endswith(".py") else fix)
    make: Maker = load_object(spec, "chat") if isinstance(spec, str) else spec
    if not callable(make):
        fix = f"is no function ({type(make).__name__}); name the class of an environment, or a function that makes one"
        raise ConfigError("chat", spec, fix)
    return lambda: make(**settings)


def _examples(game: ChatGame) -> tuple[Sequence[Example], Sequence[Example]]:
    owner = own(game)
    if not isinstance(owner, HasTasks):
        return Seeds(0, NUM_TRAIN), Seeds(NUM_TRAIN, NUM_EVAL)
    train, held_out = owner.tasks()
    for split, found in (("train", train), ("held-out", held_out)):
        if not len(found):
            raise DataError(
                f"the environment {name_of(owner)} has no {split} tasks; tasks() gives two sequences, none of them empty"
            )
    return Tasks(train), Tasks(held_out)


class Tasks(Sequence[Example]):
    """Tasks of an environment as examples, made when they are looked at."""

    def __init__(self, tasks: Sequence[Settings]) -> None:
        self._tasks = tasks

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, at: int) -> Example: ...
    @overload
    def __getitem__(self, at: slice) -> list[Example]: ...
    def __getitem__(self, at: int | slice) -> Example | list[Example]:
        if isinstance(at, slice):
            return [self._one(i) for i in range(*at.indices(len(self)))]
        return self._one(at)

    def _one(self, index: int) -> Example:
        task = self._tasks[index]
        if not isinstance(task, Mapping):
            raise DataError(
                f"task {index} of the environment is {str(task)[:60]!r}; a task is a dict of plain data for reset()"
            )
        return Example(json.dumps(dict(task), sort_keys=True, default=str), columns={TASK: dict(task)})


class Seeds(Tasks):
    """An environment without tasks: its seeds."""

    def __init__(self, first: int, num: int) -> None:
        super().__init__([])
        self._first, self._num = first, num

    def __len__(self) -> int:
        return self._num

    def _one(self, index: int) -> Example:
        if not 0 <= index < self._num:
            raise IndexError(index)
        seed = self._first + index
        return Example(f"seed {seed}", columns={TASK: {}, SEED: seed})
