"""Tasks: what to play next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from runnel.core.state import Settings, State


@dataclass(frozen=True)
class Task:
    """What to play next: a prompt, environment parameters, or a start state, with an id that is stable over epochs."""

    id: int
    data: Settings


class TaskSource(Protocol):
    """Decides what to play next. Curricula and filters implement it."""

    def next(self, n: int) -> list[Task]: ...

    def report(self, task_id: int, outcome: Mapping[str, float]) -> None: ...

    def snapshot(self) -> State: ...

    def restore(self, state: State) -> None: ...
