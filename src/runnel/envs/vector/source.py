"""An environment as vectors need it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from runnel.core.spaces import EnvSpec
from runnel.envs.vector.gym_vector import MakeVec


@dataclass(frozen=True)
class EnvSource:
    """How to make one environment or many, and what is known of it beforehand."""

    name: str
    kind: Literal["plain", "atari", "envpool"]
    make: Callable[[], Any]
    """One environment, frames stacked where that was asked for."""
    look: Callable[[], EnvSpec]
    """What it looks like; makes one to find out."""
    make_vec: MakeVec | None = None
    """Gymnasium's own vector of it, where there is one."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    needs_vec: bool = False
    """Whether there is nothing but `make_vec` (a user's vector class)."""
    family: str = ""
    """The package that it comes from (`gymnasium.envs.mujoco`); empty: a user's own."""

    check: str = ""
    """The command that says what is wrong with it."""

    @cached_property
    def spec(self) -> EnvSpec:
        """What it looks like, looked at once, and only where the vector does not find out itself."""
        return self.look()
