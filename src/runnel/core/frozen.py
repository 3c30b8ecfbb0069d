"""Pieces of a state that never change again, such as the full parts of a replay memory.

A checkpoint writes such a piece once; later checkpoints link to the file that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Frozen:
    """Named tensors behind `read`. `name` is made from their content: pieces of one name are the same."""

    name: str
    read: Callable[[], Mapping[str, Tensor]]
