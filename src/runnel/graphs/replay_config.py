"""What every recipe that learns from a replay memory asks of its settings."""

from __future__ import annotations

from typing import Protocol

from runnel.core.errors import ConfigError
from runnel.data.replay import ReplayConfig
from runnel.flow.staleness import StalenessConfig


class ReplaySettings(Protocol):
    """The settings of a run from replay that must fit each other."""

    @property
    def replay(self) -> ReplayConfig: ...

    @property
    def min_fill(self) -> int: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def staleness(self) -> StalenessConfig: ...

    @property
    def deterministic(self) -> bool: ...


def check_replay(c: ReplaySettings) -> None:
    """Raise a `ConfigError` for a replay memory that does not fit what the run writes into it."""
    c.replay.check()
    if c.replay.capacity < c.min_fill:
        raise ConfigError("replay.capacity", c.replay.capacity, f"must hold min_fill; use at least {c.min_fill}")
    if c.replay.n_step > c.num_steps:
        fix = f"a return ends with its segment, which has num_steps = {c.num_steps}; use that or less, or more num_steps"
        raise ConfigError("replay.n_step", c.replay.n_step, fix)
    if c.staleness.mode == "window" and c.deterministic:
        raise ConfigError("staleness.mode", "window", "a deterministic replay run is sync or one_step")
