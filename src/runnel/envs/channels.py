"""Further rewards and costs of a step, which environments give in `info`.

A cost `hazard` is `info["costs"]["hazard"]`, or where there is no such entry `info["hazard"]`; a reward `forward` is
`info["rewards"]["forward"]` or `info["forward"]`. So Safety-Gymnasium's `info["cost"]` is the cost `cost`, and the parts that
MuJoCo's environments report (`info["reward_ctrl"]`) are rewards by their own names.

A channel is there in every step or the run stops: a step without its cost is not a step without cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from runnel.core.checks import as_number, wrong_number
from runnel.core.errors import ConfigError, DataError
from runnel.core.resuming import OnResume, stays
from runnel.core.spaces import Channels
from runnel.core.state import Array
from runnel.core.trajectories import REWARD
from runnel.envs.spaces import Info

if TYPE_CHECKING:
    import gymnasium as gym


@dataclass(frozen=True)
class ChannelsConfig:
    """What the environment gives beside its reward, and what of it the learner's reward is made of."""

    on_resume: ClassVar[OnResume] = stays(
        "rewards", "costs", "weights", why="segments and sums of episodes in the checkpoint are of these"
    )

    rewards: tuple[str, ...] = ()
    """Further rewards, by name: NAME is info["rewards"][NAME], or info[NAME], of every step."""
    costs: tuple[str, ...] = ()
    """Costs, by name: NAME is info["costs"][NAME], or info[NAME], of every step; `cost` is Safety-Gymnasium's info["cost"]."""
    weights: dict[str, float] = field(default_factory=dict)
    """Weights of channels in the reward that is learned from, such as '{"rewards/forward": 0.5, "costs/cost": -0.1}'. The
    environment's own reward, rewards/env, weighs 1, and every other channel 0, unless they are named here."""

    @property
    def declared(self) -> Channels:
        """The channels that a Gymnasium environment is to give."""
        return Channels(self.rewards, self.costs)

    def check(self) -> None:
        """Raise a `ConfigError` for names that cannot be told apart."""
        for group in ("rewards", "costs"):
            names = getattr(self, group)
            if "" in names or len(set(names)) < len(names):
                raise ConfigError(f"channels.{group}", names, "give each channel one name of its own")
        if "env" in self.rewards:
            fix = "`env` is the reward that step() returns, which is always there; leave it out"
            raise ConfigError("channels.rewards", self.rewards, fix)

    def check_weights(self, channels: Channels) -> None:
        """Raise a `ConfigError` for the weight of a channel that there is not."""
        known = (REWARD, *channels.names)
        for name, weight in self.weights.items():
            if name not in known:
                fix = f"the environment has no channel {name!r}; there are {', '.join(known)}"
                group, _, short = name.partition("/")
                if group in ("rewards", "costs") and short:
                    fix += f"; --channels.{group} {short} reads it from info"
                raise ConfigError("channels.weights", self.weights, fix)
            if not isinstance(weight, int | float) or not np.isfinite(weight):
                raise ConfigError("channels.weights", self.weights, f"the weight of {name!r} must be a finite number")

    @property
    def learned(self) -> dict[str, float]:
        """The weight of each channel in the reward that is learned from; empty: it is that of the environment."""
        return {REWARD: 1.0, **self.weights} if self.weights else {}


def try_channels(env: gym.Env, channels: Channels, name: str) -> None:
    """Refuse channels that the first step of `env`, which was just reset, does not give.

    A step that fails (a random action may be masked) proves nothing: the run's own steps will tell.
    """
    env.action_space.seed(0)
    try:
        info = env.step(env.action_space.sample())[-1]
    except Exception:
        return
    for group in ("rewards", "costs"):
        names = getattr(channels, group)
        try:
            ChannelReader(Channels(**{group: names})).of_step(info)
        except DataError as error:
            raise ConfigError(f"channels.{group}", names, f"environment {name!r} {error}") from None


class ChannelReader:
    """Reads `channels` from the info of a step: of one environment, or of a vector that steps all of its copies."""

    def __init__(self, channels: Channels) -> None:
        self._wanted = [(name, *name.split("/", 1)) for name in channels.names]

    def of_step(self, info: Info) -> dict[str, float]:
        """The numbers of one step, by field. NaN and infinity pass: the sampler finds them and names the step."""
        found = {}
        for name, group, short in self._wanted:
            where = _where(info, group, short)
            if short not in where:
                raise DataError(_missing(group, short, info))
            number = as_number(where[short])
            if number is None:
                raise DataError(f"gave a {group[:-1]} {short!r} in info that {wrong_number(where[short])}")
            found[name] = number
        return found

    def of_batch(self, info: Info, last: Info, ended: NDArray[np.bool_]) -> dict[str, Array]:
        """The numbers of one step of all environments, `[B]` by field, from the info of a vector.

        In rows that `ended` (bool `[B]`) the step was the last one of its episode, and `info` may belong to the next episode
        already; `last` is the info of the step itself.
        """
        found = {}
        for name, group, short in self._wanted:
            numbers = np.zeros(len(ended))
            for source, rows in ((info, ~ended), (last, ended)):
                if rows.any():
                    numbers[rows] = _column(source, group, short, rows)[rows]
            found[name] = numbers
        return found


def _where(info: Info, group: str, short: str) -> Mapping[str, Any]:
    nested = info.get(group)
    return nested if isinstance(nested, Mapping) and short in nested else info


def _column(info: Info, group: str, short: str, rows: NDArray[np.bool_]) -> Array:
    """One channel of all environments. Gymnasium marks in `_NAME` which of them gave it."""
    where = _where(info, group, short)
    given = np.asarray(where.get(f"_{short}", True))
    if short not in where or not np.broadcast_to(given, rows.shape)[rows].all():
        raise DataError(_missing(group, short, info))
    column = np.asarray(where[short])
    if column.shape != rows.shape or column.dtype.kind not in "fiub":
        gave = f"gave the {group[:-1]} {short!r} in info as shape {column.shape} and type {column.dtype}"
        raise DataError(f"{gave}; expected {len(rows)} numbers, ({len(rows)},)")
    return column


def _missing(group: str, short: str, info: Info) -> str:
    there = sorted(str(k) for k in info if not str(k).startswith("_"))
    return (
        f'gave no {group[:-1]} {short!r} in a step: neither info["{group}"]["{short}"] nor info["{short}"] is there, only '
        f"{there}; put it into the info of every step, 0.0 where there is none, or leave it out of channels.{group}"
    )
