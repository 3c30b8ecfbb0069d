"""Prompts that are added while a run goes on: the room for them, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from runnel.core.bounds import bounded, check_bounds
from runnel.core.checks import check_text
from runnel.core.errors import DataError
from runnel.core.resuming import OnResume, stays
from runnel.core.state import JsonObject, Settings
from runnel.data.rows import Row
from runnel.llm.tasks.config import DataConfig, listed
from runnel.llm.tasks.files import answer_form, row_example
from runnel.llm.tasks.messages import chat_prompt
from runnel.llm.tasks.text import COLUMN, Example, TextTask

LOOKED_AT = 32
"""Examples of a task that say which columns its examples have."""


@dataclass(frozen=True)
class NewTasksConfig:
    """Room for prompts that are added while the run goes on (`runnel add-tasks`)."""

    on_resume: ClassVar[OnResume] = stays("capacity", "max_bytes", why="versions with a room of that size are on their way")

    capacity: int = bounded(0, at_least=0)
    """Prompts that may be added in all; 0: none."""
    max_bytes: int = bounded(1 << 20, at_least=1)
    """Bytes that they may take together, with their answers and columns. So much travels beside each version."""

    def __post_init__(self) -> None:
        check_bounds(self, "new_tasks.")


def example_data(example: Example) -> JsonObject:
    """An example as plain data."""
    prompt = example.prompt if isinstance(example.prompt, str) else [dict(m) for m in example.prompt]
    return {"prompt": prompt, "answer": example.answer, "columns": dict(example.columns)}


def example_of(data: Settings) -> Example:
    """The example that `example_data` has written."""
    return Example(data["prompt"], data["answer"], dict(data["columns"]))


@dataclass(frozen=True)
class TaskRoom:
    """What may be added to the prompts of a run. `num_tokens` counts the tokens of a prompt, `longest` is the most of them."""

    config: NewTasksConfig
    task: TextTask
    data: DataConfig
    num_tokens: Callable[[Example], int]
    longest: int
    sources: Collection[str] = field(default=())

    def example(self, given: Settings | Example, place: str) -> Example:
        """A row of a file as an example like those of the task, or a given example, checked; `place` says where it stands."""
        made = given if isinstance(given, Example) else self._of_row(Row(given, place))
        self.check(made, place)
        return made

    def _of_row(self, row: Row) -> Example:
        made = row_example(row, self.data, answer_form(self.data) if self.data.reward else "")
        if "answer" in self._columns[0]:
            return made
        return replace(made, columns={k: v for k, v in made.columns.items() if k != "answer"})  # the reward here gets none

    def check(self, example: Example, place: str) -> None:
        """Raise a `DataError` for an example that this run cannot play."""
        prompt = chat_prompt(example.prompt if isinstance(example.prompt, str) else list(example.prompt), place)
        if not example.text:
            raise DataError(f"{place}: the prompt is empty; give it a text, or leave the row out")
        _check_plain(example, place)
        if example.text in self._held_out:
            fix = "a prompt that measures the policy must not train it: leave the row out"
            raise DataError(f"{place}: the prompt {example.text[:60]!r} is one of the evaluation; {fix}")
        self._check_columns(example, place)
        if (num := self.num_tokens(replace(example, prompt=prompt))) > self.longest:
            fix = "shorten it, or start a run with a larger data.max_prompt"
            raise DataError(f"{place}: the prompt has {num} tokens, and this run has room for {self.longest}; {fix}")

    def _check_columns(self, example: Example, place: str) -> None:
        found, every = example.columns.get(COLUMN), self._columns[1]
        if self.sources and found not in self.sources:
            raise DataError(f"{place}: the column {COLUMN!r} is {found!r}; write one of {listed(self.sources)}")
        if missing := sorted(every - example.columns.keys()):
            name = self.data.answer if missing[0] == "answer" else missing[0]
            fix = "add it (null, where there is nothing to say): the reward may ask for it"
            raise DataError(f"{place}: the column {name!r} is missing, which the task's own examples have; {fix}")

    def knows(self, task_id: int) -> bool:
        """Whether the task's own examples have this one. Examples that are made on demand are not all made to find out."""
        return isinstance(self.task.train, list | tuple) and self.task.find(task_id) is not None

    @cached_property
    def _held_out(self) -> set[str]:
        return {example.text for example in self.task.eval}

    @cached_property
    def _columns(self) -> tuple[set[str], set[str]]:
        """The columns that some of the task's own examples have, and those that all have."""
        names = [set(self.task.train[i].columns) for i in range(min(len(self.task.train), LOOKED_AT))]
        return set.union(*names), set.intersection(*names)


def _check_plain(example: Example, place: str) -> None:
    data = example_data(example)
    check_text(data, place)
    if not (example.answer is None or isinstance(example.answer, str)):
        raise DataError(f"{place}: the answer is of type {type(example.answer).__name__}; write text, or nothing")
    try:
        same = json.loads(json.dumps(data, allow_nan=False)) == data
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        fix = "use text, numbers, true, false, null, lists, and objects with text as names"
        raise DataError(f"{place}: the columns hold more than plain JSON; {fix}")
