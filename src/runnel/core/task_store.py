"""A store of tasks that were added during a run. It belongs to a trainer, and travels beside its parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.contracts.tasks import Task
from runnel.core.errors import DataError
from runnel.core.state import Array, Settings, State


def stored_bytes(data: Settings) -> int:
    """The bytes that the data of a task take in a store."""
    return len(_encoded(data))


def _encoded(data: Settings) -> bytes:
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


class TaskStore:
    """Tasks as plain JSON data, in the order of their arrival. Nothing is ever changed or taken out.

    A task that is there already (by its id) is ignored, and counted (`doubles`). There is room for `capacity` tasks of
    `max_bytes` together; a task beyond that raises a `DataError`. `since` is the number of the first segment that may play the
    task; it never falls.

    >>> store = TaskStore(capacity=2, max_bytes=100)
    >>> [store.add(Task(i, {"prompt": text}), since=s) for i, text, s in ((7, "a", 0), (7, "a", 4), (9, "b", 4))]
    [True, False, True]
    >>> view = TaskStoreView()
    >>> view.read(store.columns())
    >>> view.tasks, view.since, store.doubles
    ([Task(id=7, data={'prompt': 'a'}), Task(id=9, data={'prompt': 'b'})], [0, 4], 1)
    """

    def __init__(self, *, capacity: int, max_bytes: int) -> None:
        self.capacity, self.max_bytes = capacity, max_bytes
        self._ids, self._ends, self._since = (np.zeros(capacity, dtype=np.int64) for _ in range(3))
        self._data = np.zeros(max_bytes, dtype=np.uint8)
        self._known: set[int] = set()
        self.doubles = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def num_bytes(self) -> int:
        """Bytes in use."""
        return int(self._ends[len(self) - 1]) if len(self) else 0

    def add(self, task: Task, *, since: int) -> bool:
        """Put a task behind the others; returns whether it is new."""
        if task.id in self._known:
            self.doubles += 1
            return False
        row, start, data = len(self), self.num_bytes, np.frombuffer(_encoded(task.data), dtype=np.uint8)
        if row == self.capacity or start + len(data) > self.max_bytes:
            raise DataError(f"a store of {self.capacity} tasks and {self.max_bytes} bytes has no room for one more task")
        if row and since < self._since[row - 1]:
            raise DataError(f"a task from segment {since} on cannot stand behind one from segment {self._since[row - 1]} on")
        self._data[start : start + len(data)] = data
        self._ids[row], self._ends[row], self._since[row] = task.id, start + len(data), since
        self._known.add(task.id)
        return True

    def columns(self) -> dict[str, Tensor]:
        """All columns at full size, as they are published: their names and shapes never change."""
        arrays = {"ids": self._ids, "ends": self._ends, "since": self._since, "data": self._data}
        found = {f"added_{name}": torch.from_numpy(array) for name, array in arrays.items()}
        return found | {"num_added": torch.tensor(len(self))}

    def snapshot(self) -> State:
        num = len(self)
        rows = {"ids": self._ids[:num].copy(), "ends": self._ends[:num].copy(), "since": self._since[:num].copy()}
        return {**rows, "data": self._data[: self.num_bytes].copy(), "doubles": self.doubles}

    def restore(self, state: State) -> None:
        self._known, self.doubles = set(np.asarray(state["ids"]).tolist()), int(state["doubles"])
        for name, array in (("ids", self._ids), ("ends", self._ends), ("since", self._since), ("data", self._data)):
            given = np.asarray(state[name])
            array[:] = 0
            array[: len(given)] = given


class TaskStoreView:
    """Published `TaskStore.columns` as a source reads them. Only tasks that it has not seen yet are decoded."""

    def __init__(self) -> None:
        self._columns: Mapping[str, Tensor] | None = None
        self._all: list[Task] = []
        self._all_since: list[int] = []
        self.tasks: list[Task] = []
        self.since: list[int] = []
        """By task, the number of the first segment that may play it."""

    def read(self, columns: Mapping[str, Tensor]) -> None:
        """Look at these columns from now on. They may be older than those before: the store only grows."""
        if columns is self._columns:
            return
        self._columns, num, have = columns, int(columns["num_added"]), len(self._all)
        if num > have:
            self._decode(columns, have, num)
        self.tasks, self.since = self._all[:num], self._all_since[:num]

    def _decode(self, columns: Mapping[str, Tensor], start: int, stop: int) -> None:
        ends: Array = columns["added_ends"][:stop].numpy()
        ids, first = columns["added_ids"][start:stop].tolist(), int(ends[start - 1]) if start else 0
        data = columns["added_data"][first : int(ends[-1])].numpy().tobytes()
        begins = [first, *ends[start:].tolist()]
        for task_id, begin, end in zip(ids, begins, begins[1:], strict=False):
            self._all.append(Task(task_id, json.loads(data[begin - first : end - first])))
        self._all_since += columns["added_since"][start:stop].tolist()
