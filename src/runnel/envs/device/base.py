"""A tensor environment: three pure functions on a batch of states, on any device."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

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
        """Next state, reward `[B]` and terminated `[B]` (bool). Actions of a network are not clipped to their bounds.

        If `spec.channels` declares further rewards or costs, they are leaves of the next state under their fields
        (`costs/hazard` `[B]`, float32): what the step that led to this state gave. First states have them, too.
        """
        ...

    def observe(self, state: Leaves) -> Leaves:
        """The observation leaves of a state, under the keys of `spec.obs`. They may be leaves of the state itself."""
        ...


@runtime_checkable
class TaskedEnv(TensorEnv, Protocol):
    """A tensor environment that can be told what to play (`spec.tasks`)."""

    def initial_of(self, tasks: Tensor, generator: torch.Generator) -> Batch:
        """First states that play `tasks` `[num, d]`. What a task decides is part of the state."""
        ...


class ArrayEnv:
    """Marks environments whose `transition` and `observe` also take numpy arrays. On the CPU they run on those."""
