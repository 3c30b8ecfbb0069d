"""Tensor environments whose episodes may begin at recorded states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from runnel.core.codec import from_bytes, to_bytes
from runnel.core.errors import DataError
from runnel.core.records import Batch
from runnel.core.spaces import TaskSpace
from runnel.core.state import Array
from runnel.envs.device.base import ArrayEnv, TaskedEnv, TensorEnv

_AGAIN = "record the states again, in the environment as it is now"


class StartedTensors:
    """`env`, whose episodes begin at one of `states` (leaves `[n, ...]`) where their task is its number, not -1."""

    def __init__(self, env: TensorEnv, states: Mapping[str, Tensor], tasks: TaskSpace) -> None:
        self.name, self.max_steps, self.spec = env.name, env.max_steps, replace(env.spec, tasks=tasks)
        self.initial, self.transition, self.observe = env.initial, env.transition, env.observe
        self._states = dict(states)

    def initial_of(self, tasks: Tensor, generator: torch.Generator) -> Batch:
        number = tasks[:, 0].long()
        fresh = self.initial(len(number), generator)
        if not self._states:
            return fresh
        return Batch({k: torch.where(_beside(number >= 0, x), self._rows(k, x, number), x) for k, x in fresh.items()})

    def _rows(self, name: str, like: Tensor, number: Tensor) -> Tensor:
        """A leaf of the states with these numbers; of those that are -1, of any."""
        if self._states[name].device != like.device:  # once: they are needed where the environments are
            self._states[name] = self._states[name].to(like.device)
        return self._states[name][number.clamp(min=0)]


class _StartedArrays(StartedTensors, ArrayEnv):
    """The same, of an environment that also takes numpy arrays."""


def start_tensors(env: TensorEnv, states: Sequence[bytes], tasks: TaskSpace) -> TaskedEnv:
    """`env` with start states, which were saved by `state_bytes`."""
    made = _StartedArrays if isinstance(env, ArrayEnv) else StartedTensors
    due = {name: (tuple(x.shape[1:]), x.dtype) for name, x in env.initial(1, torch.Generator().manual_seed(0)).items()}
    found: dict[str, list[Tensor]] = {name: [] for name in due}
    for i, record in enumerate(states):
        saved = _leaves(record, i)
        if {name: (tuple(x.shape), x.dtype) for name, x in saved.items()} != due:
            raise DataError(f"start state {i} does not fit environment {env.name!r}, which has other leaves; {_AGAIN}")
        for name, x in saved.items():
            found[name].append(x)
    return made(env, {name: torch.stack(some) for name, some in found.items()} if states else {}, tasks)


def _leaves(record: bytes, number: int) -> dict[str, Tensor]:
    """The leaves of one state; what is no number is left out."""
    try:
        arrays = {name: np.array(x) for name, x in from_bytes(record).items()}
    except (ValueError, KeyError) as error:
        raise DataError(f"start state {number} is damaged ({error}); {_AGAIN}") from error
    return {name: torch.from_numpy(x) for name, x in arrays.items() if x.dtype.kind in "biuf"}


def state_bytes(leaves: Mapping[str, Array | Tensor], row: int) -> bytes:
    """The state of one environment of many."""
    return to_bytes({name: np.array(torch.as_tensor(x)[row].cpu()) for name, x in leaves.items()})


def _beside(rows: Tensor, like: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (like.dim() - 1))
