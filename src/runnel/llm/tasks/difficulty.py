"""The online difficulty filter: prompts that are always or never solved teach nothing, so they are skipped for a while.

The trainer keeps one history of all prompts (`llm/learning/task_history.py`) and publishes it beside each version. Which prompt
a segment gets is a pure function of the seed, the segment's number and the history of its version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from runnel.core.bounds import bounded, check_bounds
from runnel.core.contracts.tasks import Draw, Task
from runnel.core.errors import ConfigError
from runnel.core.resuming import OnResume, may_change, stays
from runnel.core.rng import make_rng
from runnel.core.state import State
from runnel.llm.tasks.passes import Passes
from runnel.llm.tasks.text import Example

if TYPE_CHECKING:  # settings are read without torch
    from torch import Tensor

    from runnel.llm.tasks.new_examples import NewExamples


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

    def plays(self, mean: float, rested: int) -> bool:
        """Whether a prompt of this mean reward is played, after `rested` segments without it."""
        return self.low <= mean <= self.high or rested >= self.retry_after


class TableView:
    """A published `TaskTable.columns` as a source reads it; it is indexed once for each version."""

    def __init__(self) -> None:
        self._columns: Mapping[str, Tensor] | None = None
        self.rows: dict[int, int] = {}
        """The row of each task, by its id."""
        self.mean: list[float] = []
        self.last: list[int] = []

    def read(self, columns: Mapping[str, Tensor]) -> None:
        """Look at these columns from now on."""
        if columns is self._columns:
            return
        num = int(columns["num"])
        self._columns, self.rows = columns, {task_id: row for row, task_id in enumerate(columns["ids"][:num].tolist())}
        self.mean, self.last = columns["mean"][:num].tolist(), columns["last"][:num].tolist()


class DifficultySource:
    """A `TaskSource` that passes over prompts outside of a band of mean reward.

    Each pass has every prompt once, in a new seeded order (`Passes`). In place of one that may not be played comes another that
    may, drawn for this segment; where none may, the prompt is played all the same. With a filter that is off, all may. `new`
    are the examples that were added during the run, if it has room for some.
    """

    uses_history = True

    def __init__(
        self,
        examples: Sequence[Example],
        config: DifficultyConfig,
        *,
        seed: int,
        name: str = "prompts",
        new: NewExamples | None = None,
    ) -> None:
        self._examples, self._config, self._seed, self._name = examples, config, seed, name
        self._passes, self._new = Passes(len(examples), seed=seed, name=name), new
        self._table = TableView()

    def next(self, draw: Draw) -> Task:
        if self._config.on:
            self._table.read(draw.history)
        if self._new is not None:
            self._new.read(draw.history)
        index = next((i for i in self._candidates(draw) if self._may_play(i, draw.sequence)), -1)
        index = next(self._candidates(draw)) if index < 0 else index
        example = self._example(index)
        return Task(example.id, {"example": example, "index": index})

    def _candidates(self, draw: Draw) -> Iterator[int]:
        """Places of examples, those first that come first."""
        since = () if self._new is None else self._new.since
        if not draw.attempt:
            yield self._passes.at(draw.sequence, since)
        num = len(self._examples) + bisect_right(since, draw.sequence)
        yield from make_rng(self._seed, self._name, "instead", draw.sequence, draw.attempt).permutation(num).tolist()

    def _example(self, index: int) -> Example:
        """The one at a place: behind the examples of the task stand those that were added."""
        if self._new is not None and index >= len(self._examples):
            return self._new.examples[index - len(self._examples)]
        return self._examples[index]

    def _may_play(self, index: int, sequence: int) -> bool:
        table, row = self._table, self._table.rows.get(self._example(index).id)
        return row is None or self._config.plays(table.mean[row], sequence - table.last[row])

    def snapshot(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """It has no state: the draw decides."""
