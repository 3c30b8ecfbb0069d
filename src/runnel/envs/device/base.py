"""What a tensor environment is: three pure functions on a batch of states, on any device."""

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
    """An environment as pure functions. A state is a `Batch` of leaves `[B, ...]`; nothing here may wait for the device.

    Arrays that a function returns are read once and may be shared (a constant reward); arrays it is given are never
    written to.
    """

    name: str
    spec: EnvSpec
    max_steps: int
    """Episodes are truncated at this length; 0 for never."""

    def initial(self, num: int, generator: torch.Generator) -> Batch:
        """`num` first states, drawn from `generator`, on its device."""
        ...

    def transition(self, state: Leaves, action: Array) -> tuple[Leaves, Array, Array]:
        """Next state, reward `[B]` and terminated `[B]` (bool). Actions come from a network: not clipped."""
        ...

    def observe(self, state: Leaves) -> Leaves:
        """The observation leaves of a state, under the keys of `spec.obs`; may be leaves of the state themselves."""
        ...


class ArrayEnv:
    """Base of environments whose `transition` and `observe` also take numpy arrays: on the host they run on those."""
