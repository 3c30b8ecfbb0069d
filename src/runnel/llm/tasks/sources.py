"""Several sources of prompts beside each other: one task of them, and which source the next prompt comes from.

The trainer learns how much each source still teaches (`llm/learning/task_history.py`), and publishes the share that each is to
have; the source of a segment is drawn by these shares, as a pure function of the seed and the segment's number.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal, overload

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.tasks import Draw, Task
from runnel.core.errors import ConfigError, DataError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_rng
from runnel.core.state import State
from runnel.llm.tasks.difficulty import DifficultyConfig, DifficultySource
from runnel.llm.tasks.text import COLUMN, Example, TextTask

if TYPE_CHECKING:  # settings are read without torch
    from runnel.llm.tasks.new_examples import NewExamples


@dataclass(frozen=True)
class SourcesConfig:
    """Which of several sources (`tasks`) the next prompt comes from."""

    on_resume: ClassVar[OnResume] = may_change("temperature", "explore", then="counts from the next batch on") | stays(
        "pick", "window", why="what is known of the sources was measured so"
    )

    pick: Literal["even", "ucb"] = "even"
    """even: all sources have the same share. ucb: more of those whose prompts have large advantages, or that were seldom played
    (DUMP)."""
    window: int = bounded(300, at_least=1)
    """ucb: advantages of so many groups of a source, the last ones, make its mean."""
    temperature: float = bounded(0.1, above=0)
    """ucb: how sharply the shares follow the bounds; a high one makes them even."""
    explore: float = bounded(1.0, at_least=0)
    """ucb: weight of the bonus of sources that were seldom played."""

    def __post_init__(self) -> None:
        check_bounds(self, "sources.")


def named_tasks(tasks: Sequence[str]) -> dict[str, str]:
    """What follows `--tasks`, as tasks by the name of their source.

    >>> named_tasks(["easy=a.jsonl", "hard=mine.py:make_task"])
    {'easy': 'a.jsonl', 'hard': 'mine.py:make_task'}
    """
    found: dict[str, str] = {}
    for text in tasks:
        name, equals, task = text.partition("=")
        if not (name.isidentifier() and equals and task):
            raise ConfigError("tasks", text, "write NAME=TASK for each source, such as easy=a.jsonl hard=b.jsonl")
        if name in found:
            raise ConfigError("tasks", text, f"two sources are called {name!r}; give each a name of its own")
        found[name] = task
    if len(found) == 1:
        raise ConfigError("tasks", tasks[0], "there is only one source; give several, or use task")
    return found


class NamedExamples(Sequence[Example]):
    """The examples of a source, with its name as a column; made when they are asked for."""

    def __init__(self, name: str, examples: Sequence[Example]) -> None:
        self._name, self._examples = name, examples

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, i: int) -> Example: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Example]: ...

    def __getitem__(self, i: int | slice) -> Example | Sequence[Example]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        example = self._examples[i]
        if example.columns.get(COLUMN, self._name) != self._name:
            raise DataError(f"an example of the source {self._name!r} has a column {COLUMN!r} of its own; rename it")
        return replace(example, columns={**example.columns, COLUMN: self._name})


class JoinedExamples(Sequence[Example]):
    """The examples of several sources, one source after another."""

    def __init__(self, parts: Sequence[Sequence[Example]]) -> None:
        self._parts, self._ends = list(parts), list(accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        return self._ends[-1]

    @overload
    def __getitem__(self, i: int) -> Example: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Example]: ...

    def __getitem__(self, i: int | slice) -> Example | Sequence[Example]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(i)
        part = bisect_right(self._ends, i % len(self))
        return self._parts[part][i % len(self) - self._ends[part]]  # counted from the end of its part


def join_tasks(tasks: Mapping[str, TextTask]) -> tuple[TextTask, dict[str, Sequence[Example]]]:
    """Several tasks as one, with a column that names the source of each example; and the train examples of each source.

    One reward judges all of them. Evaluations take the sources in turn.
    """
    first = next(iter(tasks.values()))
    for name, task in tasks.items():
        if task.components != first.components:
            fix = "sources have one reward: let it look at the column `source`, or train on one source"
            raise ConfigError("tasks", name, f"its reward is another than that of {next(iter(tasks))!r}; {fix}")
    train = {name: NamedExamples(name, task.train) for name, task in tasks.items()}
    held = [list(NamedExamples(name, task.eval)) for name, task in tasks.items()]
    in_turn = [part[i] for i in range(max(map(len, held))) for part in held if i < len(part)]
    kept = {e.text for e in in_turn}
    for name, task in tasks.items():
        if isinstance(task.train, list | tuple) and (shared := kept & {e.text for e in task.train}):
            raise DataError(f"source {name!r}: {len(shared)} evaluation prompts are in its train split, e.g. {min(shared)!r}")
    longest = max(task.max_tokens for task in tasks.values())
    joined = TextTask(
        "+".join(tasks), JoinedExamples(list(train.values())), in_turn, list(first.components), max_tokens=longest
    )
    return joined, dict(train)


class MixedSource:
    """A `TaskSource` over several sources, which have the shares that the history says. `new` has for each source its examples
    that were added during the run, if it has room for some."""

    uses_history = True

    def __init__(
        self,
        sources: Mapping[str, Sequence[Example]],
        filter: DifficultyConfig,
        *,
        seed: int,
        new: Mapping[str, NewExamples] | None = None,
    ) -> None:
        self._seed, new = seed, new or {}
        self._sources = [
            DifficultySource(part, filter, seed=seed, name=name, new=new.get(name)) for name, part in sources.items()
        ]

    def next(self, draw: Draw) -> Task:
        shares = draw.history["shares"].cumsum(0)
        number = make_rng(self._seed, "source", draw.sequence, draw.attempt).random() * float(shares[-1])
        return self._sources[min(int((shares <= number).sum()), len(self._sources) - 1)].next(draw)

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """It has no state: the draw decides."""
