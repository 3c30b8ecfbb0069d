"""Memories of single decisions inside a learner: the newest ones, or a uniform sample of all that there ever were.

A learner that owns its memory needs no worker for it, and the memory is part of the learner's state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.memory import free_memory
from runnel.core.spaces import ArraySpec
from runnel.core.state import Array, State
from runnel.data.leaves import numpy_dtype


class DecisionMemory(ABC):
    """Up to `capacity` rows of named columns. `field` is the setting that gives the capacity, for errors.

    Memory is only taken as it fills.
    """

    def __init__(self, capacity: int, columns: Mapping[str, ArraySpec], *, field: str) -> None:
        self.capacity, self.num_seen = capacity, 0
        """Rows that were ever inserted."""
        self._field = field
        sizes = {name: int(np.prod(spec.shape)) * numpy_dtype(spec.dtype).itemsize for name, spec in columns.items()}
        needed, free = capacity * sum(sizes.values()), free_memory()
        if needed > free:
            fits = int(0.9 * free / sum(sizes.values()))
            text = f"needs {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free; use at most {fits}"
            raise ConfigError(field, capacity, text)
        self._arrays = {k: np.zeros((capacity, *spec.shape), numpy_dtype(spec.dtype)) for k, spec in columns.items()}

    @property
    def num_rows(self) -> int:
        """Rows that are kept."""
        return min(self.num_seen, self.capacity)

    def insert(self, rows: Mapping[str, Tensor], rng: np.random.Generator) -> None:
        """Keep rows `[n, ...]`, in their order, or forget them: `_places` decides."""
        num = len(next(iter(rows.values())))
        places = self._places(num, rng)
        kept = places >= 0
        for name, array in self._arrays.items():
            # of rows for one place the last is kept: numpy assigns them in their order
            array[places[kept]] = rows[name].detach().cpu().numpy()[kept]
        self.num_seen += num

    @abstractmethod
    def _places(self, num: int, rng: np.random.Generator) -> Array:
        """Where the next `num` rows go; -1: nowhere."""

    def draw(self, num: int, rng: np.random.Generator) -> dict[str, Tensor]:
        """`num` rows, each any of those that are kept."""
        index = rng.integers(self.num_rows, size=num)
        return {name: torch.from_numpy(array[index]) for name, array in self._arrays.items()}

    def state_dict(self) -> State:
        """What is kept, and how many rows there have been."""
        rows = {name: torch.from_numpy(array[: self.num_rows].copy()) for name, array in self._arrays.items()}
        return {"num_seen": self.num_seen, "capacity": self.capacity, "rows": rows}

    def load_state_dict(self, state: State) -> None:
        """Undo `state_dict`."""
        if state["capacity"] != self.capacity:
            raise ConfigError(self._field, self.capacity, f"the memory in the checkpoint has {state['capacity']} places")
        self.num_seen = state["num_seen"]
        for name, array in self._arrays.items():
            array[: self.num_rows] = torch.as_tensor(state["rows"][name]).numpy()


class RecentDecisions(DecisionMemory):
    """The newest rows: each goes over the oldest one."""

    def _places(self, num: int, rng: np.random.Generator) -> Array:
        places = (self.num_seen + np.arange(num)) % self.capacity
        places[: max(num - self.capacity, 0)] = -1
        return places


class DecisionReservoir(DecisionMemory):
    """A uniform sample of all rows that were ever inserted (reservoir sampling, Vitter 1985, algorithm R).

    Row number n (from 0) is kept with probability min(1, capacity / (n + 1)), in place of any other.
    """

    def _places(self, num: int, rng: np.random.Generator) -> Array:
        numbers = self.num_seen + np.arange(num)
        drawn = rng.integers(numbers + 1)
        return np.where(numbers < self.capacity, numbers, np.where(drawn < self.capacity, drawn, -1))
