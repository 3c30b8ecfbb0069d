"""Exchanges in a population inside one run (population based training, Jaderberg et al. 2017, arXiv:1711.09846).

Members have values of their own for some live settings. Every so many updates each of the worst quarter takes over the learner
of one of the best quarter, with that one's settings times 0.8 or 1.25.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from runnel.core import schedule
from runnel.core.bounds import bounded
from runnel.core.errors import ConfigError
from runnel.core.live_settings import live_fields, not_live
from runnel.core.resuming import OnResume, may_change, stays

QUARTER = 4
FACTORS = (0.8, 1.25)
Value = float | str
"""A number, or a schedule."""


@dataclass(frozen=True)
class ExchangeConfig:
    """Exchanges between the members of a population inside one run."""

    on_resume: ClassVar[OnResume] = may_change("every") | stays("settings", "spread", why="the members began with it")

    every: int = bounded(0, at_least=0)
    """Updates between two exchanges; 0: every member stays as it is."""
    settings: tuple[str, ...] = ("lr",)
    """Live settings of the algorithm of which each member has values of its own (lr, entropy_coef, ...)."""
    spread: float = bounded(3.0, at_least=1)
    """Members begin with values between the given one divided by this and times this."""

    def check(self, config: object, group: str) -> None:
        """Raise a `ConfigError` for a setting that members cannot have of their own. The run has `config` as `group`."""
        known = live_fields(type(config))
        for name in self.settings:
            if name not in known:
                raise ConfigError("exchange.settings", name, not_live(name, None, known).fix)
            value = getattr(config, name)
            if isinstance(value, bool | int) or not isinstance(value, Value) or not schedule.parse(value, f"{group}.{name}")[0]:
                fix = (
                    f"members get it times a factor, and {group}.{name} is {value!r}; give it a value above 0, or leave it out"
                )
                raise ConfigError("exchange.settings", name, fix)


def times(value: Value, factor: float) -> Value:
    """A number or a schedule times a factor.

    >>> times(0.5, 2.0), times("linear(1e-3, 1e-4, 0.5)", 2.0)
    (1.0, 'linear(0.002, 0.0002, 0.5)')
    """
    if isinstance(value, str):
        start, end, share = schedule.parse(value)
        return f"linear({start * factor:g}, {end * factor:g}, {share:g})"
    return value * factor


def begin(config: object, exchange: ExchangeConfig, rng: np.random.Generator) -> dict[str, Value]:
    """The settings with which a member begins."""
    most = math.log(exchange.spread)
    return {name: times(getattr(config, name), math.exp(rng.uniform(-most, most))) for name in exchange.settings}


def explore(settings: Mapping[str, Value], rng: np.random.Generator) -> dict[str, Value]:
    """Settings near those of a member."""
    return {name: times(value, float(rng.choice(FACTORS))) for name, value in settings.items()}


def pairs(scores: Sequence[float], rng: np.random.Generator) -> list[tuple[int, int]]:
    """Who takes over from whom: (member, parent) for each of the worst quarter that is worse than the best quarter.

    >>> pairs([3.0, 1.0, 2.0, 4.0], np.random.default_rng(0))
    [(1, 3)]
    """
    ranked = sorted(range(len(scores)), key=lambda n: -scores[n])
    num = max(1, len(ranked) // QUARTER)
    best = ranked[:num]
    return [(n, int(rng.choice(best))) for n in ranked[-num:] if scores[n] < scores[best[-1]]]
