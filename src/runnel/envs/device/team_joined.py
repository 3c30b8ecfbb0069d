"""What all agents of a world see as one array, in numpy or as a tensor: a global state where the world names none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from runnel.envs.device.arrays import Array, blanked, floats, module_of
from runnel.envs.device.base import Leaves
from runnel.envs.device.team import TensorTeamEnv


class Joined:
    """What all agents of a world see, as one array, and for each of them whether it is there (`envs/team/global_state.py`)."""

    def __init__(self, env: TensorTeamEnv) -> None:
        self._places: list[tuple[int, int, list[str]]] = []
        kinds, specs = env.spec.kinds, list(env.spec.agents.values())
        for place, spec in enumerate(specs):
            kind = next(k for k, members in enumerate(kinds) if place in members)
            self._places.append((kind, kinds[kind].index(place), list(spec.obs)))

    def __call__(self, seen: Sequence[Leaves], gone: Array | None) -> Array:
        """From the leaves of each kind, arrays or tensors; those who are `gone` `[E, A]` are zeros. `[E, W]`"""
        parts = []
        for place, (kind, within, keys) in enumerate(self._places):
            for key in keys:
                flat = _flat(seen[kind][key][:, within])
                parts.append(flat if gone is None else blanked(flat, gone[:, place]))
        there = np.ones((len(parts[0]), len(self._places)), np.float32) if gone is None else floats(~gone)
        return module_of(parts[0]).concatenate([*parts, there], 1)


def _flat(x: Array) -> Array:
    """What agents see as vectors of floats; bytes as numbers from 0 to 1. `[E, ...] -> [E, d]`"""
    flat = floats(x.reshape(len(x), -1))
    return flat / 255.0 if x.dtype == (torch.uint8 if isinstance(x, Tensor) else np.uint8) else flat
