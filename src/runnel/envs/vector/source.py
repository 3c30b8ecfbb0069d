"""A description of an environment, from which vectors are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from runnel.core.spaces import Channels, EnvSpec
from runnel.core.state import Settings
from runnel.envs.vector.gym_vector import MakeVec

if TYPE_CHECKING:
    import gymnasium as gym


@dataclass(frozen=True)
class EnvSource:
    """How to make one environment or many, and what is known about it beforehand."""

    name: str
    kind: Literal["plain", "atari", "envpool"]
    make: Callable[[], gym.Env]
    """Makes one environment, with its frames stacked if the config says so."""
    look: Callable[[], EnvSpec]
    """Makes one environment and returns its spec."""
    make_vec: MakeVec | None = None
    """Makes the environment's own Gymnasium vector; None if it has none."""
    kwargs: Settings = field(default_factory=dict)
    needs_vec: bool = False
    """Whether `make_vec` is the only way (a user's vector class)."""
    family: str = ""
    """The package that it comes from (`gymnasium.envs.mujoco`); empty: a user's own."""
    channels: Channels = field(default_factory=Channels)
    """What its steps are to have beside their reward."""
    check: str = ""
    """The command that explains what is wrong with it, for messages."""

    @cached_property
    def spec(self) -> EnvSpec:
        """The result of `look`, which runs at most once."""
        return self.look()
