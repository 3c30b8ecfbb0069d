"""Types of plain data, and chunks of state that never change again.

A checkpoint writes a sealed chunk (a full chunk of a replay memory) once. Later checkpoints link to the file that exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:  # reports and the board read states, and start without torch
    from numpy.typing import NDArray
    from torch import Tensor

State = dict[str, Any]
"""What `snapshot` and `state_dict` return: nested dicts and lists of tensors, arrays, numbers, texts and None."""
Plain = Any
"""Plain data: what a message or a JSON text holds."""
Metrics = dict[str, float]
"""Numbers of an update, by name."""
JsonObject = dict[str, Any]
"""A JSON object: a config, a row or a report as plain data."""
WorkerEvent = JsonObject
"""What a worker, a sampler or a client tells the run, as plain data. `kind` says what it is (update, eval, ...)."""
Array: TypeAlias = "NDArray[Any]"
"""A numpy array of any type."""
Settings = Mapping[str, Any]
"""Arguments by name, as a user gives them (`env_kwargs`)."""


@dataclass(frozen=True)
class SealedChunk:
    """Named tensors that `read` loads. `name` is made from their content: chunks with equal names are equal."""

    name: str
    read: Callable[[], Mapping[str, Tensor]]
