"""State as plain data, and the parts of it that never change again.

A checkpoint writes such a part (a full chunk of a replay memory) once; later checkpoints link to the file that is there.
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
"""What a worker, a sampler or a client tells the run: plain data by field. `kind` says what it is (update, eval, ...)."""
Array: TypeAlias = "NDArray[Any]"
"""A numpy array of any type."""
Settings = Mapping[str, Any]
"""Arguments by name, as a user gives them (`env_kwargs`)."""


@dataclass(frozen=True)
class SealedChunk:
    """Named tensors behind `read`. `name` is made from their content: parts of one name are the same."""

    name: str
    read: Callable[[], Mapping[str, Tensor]]
