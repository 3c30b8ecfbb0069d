"""What an environment looks like to a network: flat observation leaves and one action description.

Plain data, made by `envs` from Gymnasium spaces, so that `nets` and `agents` never import an environment library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class ArraySpec:
    """Shape and type of one array, without batch dimensions."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class ActionSpec:
    """One agent's action: `discrete` (a number below `num_actions`) or `continuous` (a box)."""

    kind: Literal["discrete", "continuous"]
    shape: tuple[int, ...] = ()
    num_actions: int = 0
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    start: int = 0
    """First value of a Gymnasium `Discrete` space; networks count from 0, the environment wrapper adds it."""
    env_dtype: str = "float32"
    """What `env.step` takes where the action is a box; a box of integers gets rounded values."""

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if self.kind == "discrete" else torch.float32

    @property
    def size(self) -> int:
        """Width of a network's output head for this action: number of actions, or of coordinates."""
        if self.kind == "discrete":
            return self.num_actions
        return int(torch.Size(self.shape).numel())

    @property
    def noise_size(self) -> int:
        """Uniform numbers a policy needs to sample one action (see `Sampler`: noise travels with the request)."""
        return 1 if self.kind == "discrete" else self.size


@dataclass(frozen=True)
class EnvSpec:
    """Observations (flat keys `obs` or `obs/name`), the action, and whether an `action_mask` comes with each step."""

    obs: Mapping[str, ArraySpec]
    action: ActionSpec
    has_mask: bool = False
    agents: tuple[str, ...] = ("agent",)
