"""What to play next: examples in a seeded order without end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from runnel.core.protocols import State, Task
from runnel.core.rng import make_rng, rng_state, set_rng_state
from runnel.llm.tasks.text import Example


class ExampleSource:
    """A `TaskSource` that draws from a list without end: a new seeded order in every pass. A task's id is its place there.

    `report` keeps the last outcome and the number of visits of each example (curricula build on them).
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
