"""Tasks: what to play next, and what is learned of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from runnel.core.state import Metrics, Settings, State

if TYPE_CHECKING:  # sources are listed without torch
    from torch import Tensor

    from runnel.core.records import Batch, Segment


@dataclass(frozen=True)
class Task:
    """What to play next: a prompt, environment parameters, or a start state, with an id that is stable over epochs."""

    id: int
    data: Settings


@dataclass(frozen=True)
class Draw:
    """For what a task is chosen: the segment, by its number in the stream, and what was learned of tasks up to the version that
    makes it."""

    sequence: int
    attempt: int = 0
    """How often the segment was begun before, and given up. Of environments: the how many-th task of the row."""
    row: int = 0
    """Of environments: the row of the segment."""
    history: Mapping[str, Tensor] = field(default_factory=dict)
    """`Curriculum.history` of the version that the segment requires; of the newest one if it requires none."""


class TaskSource(Protocol):
    """Decides what to play next.

    A source that `uses_history` is a pure function: its seed and the draw decide, so that all actors choose as one would, and a
    resumed run as one that was never stopped. Others have an order of their own.
    """

    uses_history: bool

    def next(self, draw: Draw) -> Task: ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


class Curriculum(Protocol):
    """What a trainer learns of tasks: it sees each batch, and publishes its history beside each version of the parameters."""

    def see(self, segments: Mapping[str, Sequence[Segment]], batch: Batch) -> Metrics:
        """Learn from the segments of a batch, by reader name and in the order of the stream; returns metrics to show.

        `batch` is what the learner made of them (`Learner.prepare`); empty where several ranks or parts made it."""
        ...

    def history(self) -> Mapping[str, Tensor]:
        """What sources choose by. The same names and shapes in every version."""
        ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...


@runtime_checkable
class TakesTasks(Protocol):
    """A curriculum that takes new tasks while a run goes on."""

    def add(self, tasks: Sequence[Settings], *, version: int) -> int:
        """Take new tasks as plain data; the history of `version` is the first to have them. Returns how many are new."""
        ...
