"""A table of tasks: what was learned of each. It belongs to a trainer, and travels beside its parameters."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from runnel.core.state import Array, State

KINDS = {"ids": np.int64, "visits": np.int64, "last": np.int64, "mean": np.float64}


class TaskTable:
    """Visits, running mean, and the number of the last segment of each task that was played, by its id.

    Rows are in the order of first visits. A table holds `capacity` tasks; then a new one takes the row of the one that was
    played longest ago. `momentum` is how much of a mean each new value keeps of those before.

    >>> table = TaskTable(capacity=2, momentum=0.5)
    >>> for task_id, value, sequence in ((7, 1.0, 0), (9, 0.0, 1), (7, 0.0, 2), (8, 1.0, 3)):
    ...     table.add(task_id, value, sequence=sequence)
    >>> table.ids.tolist(), table.mean.tolist(), table.visits.tolist(), table.last.tolist()
    ([7, 8], [0.5, 1.0], [2, 1], [2, 3])
    """

    def __init__(self, *, capacity: int, momentum: float) -> None:
        self._capacity, self._momentum = capacity, momentum
        self._columns: dict[str, Array] = {name: np.zeros(capacity, dtype=kind) for name, kind in KINDS.items()}
        self._rows: dict[int, int] = {}

    @property
    def ids(self) -> Array:
        return self._columns["ids"][: len(self._rows)]

    @property
    def visits(self) -> Array:
        return self._columns["visits"][: len(self._rows)]

    @property
    def last(self) -> Array:
        return self._columns["last"][: len(self._rows)]

    @property
    def mean(self) -> Array:
        return self._columns["mean"][: len(self._rows)]

    def add(self, task_id: int, value: float, *, sequence: int) -> None:
        """Take in a value of a task, from segment number `sequence`."""
        row = self._rows.get(task_id)
        if row is None:
            row = self._new_row(task_id)
            self.mean[row] = value
        else:
            self.mean[row] = self._momentum * self.mean[row] + (1 - self._momentum) * value
        self.visits[row] += 1
        self.last[row] = sequence

    def _new_row(self, task_id: int) -> int:
        row = len(self._rows)
        if row == self._capacity:
            row = int(self.last.argmin())
            del self._rows[int(self.ids[row])]
        self._rows[task_id] = row
        self.ids[row], self.visits[row] = task_id, 0
        return row

    def columns(self) -> dict[str, Tensor]:
        """All columns at full size, and `num`, the number of rows in use."""
        found = {name: torch.from_numpy(column) for name, column in self._columns.items()}
        return found | {"num": torch.tensor(len(self._rows))}

    def snapshot(self) -> State:
        return {name: column[: len(self._rows)].copy() for name, column in self._columns.items()}

    def restore(self, state: State) -> None:
        """Take a table back. Of one that is too large, the tasks that were played last are kept."""
        order = np.sort(np.argsort(-np.asarray(state["last"]), kind="stable")[: self._capacity])
        self._rows = {int(task_id): row for row, task_id in enumerate(np.asarray(state["ids"])[order])}
        for name, column in self._columns.items():
            column[:] = 0
            column[: len(order)] = np.asarray(state[name])[order]
