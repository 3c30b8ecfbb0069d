"""A tensor environment: three pure functions on a batch of states, on any device."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from runnel.core.records import Batch
from runnel.core.spaces import EnvSpec
from runnel.envs.device.arrays import Array

Leaves = dict[str, Array]
"""Named arrays `[B, ...]`: a `Batch`, or its numpy form."""


@runtime_checkable
class TensorEnv(Protocol):
    """An environment as pure functions. A state is a `Batch` of leaves `[B, ...]`. No function may wait for the device.

    The caller reads a returned array once and does not write to it, so it may be shared (a constant reward). A function never
    writes to its arguments.
    """

    name: str
    spec: EnvSpec
    max_steps: int
    """Episodes are truncated at this length; 0: never."""

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        """`num` first states, drawn from `generator`, on its device."""
        ...

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        """Next state, reward `[B]` and terminated `[B]` (bool). Actions of a network are not clipped to their bounds."""
        ...

    def observe(self, state: Leaves) -> Leaves:
        """The observation leaves of a state, under the keys of `spec.obs`. They may be leaves of the state itself."""
        ...


class ArrayEnv:
    """Marks environments whose `transition` and `observe` also take numpy arrays. On the CPU they run on those."""
