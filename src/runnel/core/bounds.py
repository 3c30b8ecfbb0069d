"""Bounds of config fields. A bound is written beside the default, shown in `--help`, and checked here and nowhere else.

    lr: float | str = scheduled(3e-4)
    gamma: float = bounded(0.99, at_least=0, at_most=1)

A subclass that gives a field another default keeps its bound.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass
from typing import TypeVar, cast

from runnel.core import schedule
from runnel.core.config import Setting, hints_of, settings_of
from runnel.core.errors import ConfigError

T = TypeVar("T")
_KEY = "bound"


@dataclass(frozen=True)
class Bound:
    """The numbers that a field may have. None always passes, and so does a text: of those, a schedule is checked."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    finite: bool = False
    note: str = ""
    """Advice at the end of the error."""
    is_schedule: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is inside. NaN never is: each comparison is one that NaN fails."""
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
            and (not self.finite or math.isfinite(value))
        )

    @property
    def interval(self) -> str:
        """The bound as `--help` shows it.

        >>> Bound(above=0).interval, Bound(at_least=1).interval, Bound(at_least=0, below=1).interval
        ('> 0', '>= 1', 'in [0, 1)')
        """
        low = next((x for x in (self.above, self.at_least) if x is not None), None)
        high = next((x for x in (self.below, self.at_most) if x is not None), None)
        if low is not None and high is not None:
            return f"in {'(' if self.above is not None else '['}{low:g}, {high:g}{')' if self.below is not None else ']'}"
        if low is not None:
            return f"{'>' if self.above is not None else '>='} {low:g}"
        if high is not None:
            return f"{'<' if self.below is not None else '<='} {high:g}"
        return "a finite number"

    def fix(self, hint: object) -> str:
        """What to do about a value outside, for a field of the type `hint`."""
        words = (
            self.interval.replace(">= ", "at least ").replace("<= ", "at most ").replace("> ", "above ").replace("< ", "below ")
        )
        text = f"must be {words}" + (", and finite" if self.finite and self.interval != "a finite number" else "")
        text += ", or None" if type(None) in typing.get_args(hint) else ""
        return text + (f"; {self.note}" if self.note else "")


def bounded(
    default: T,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    finite: bool = False,
    note: str = "",
) -> T:
    """The default of a config field that has bounds. The entries of a tuple are bounded one by one."""
    bound = Bound(above, at_least, below, at_most, finite, note)
    return dataclasses.field(default=default, metadata={_KEY: bound})


def scheduled(default: T) -> T:
    """The default of a field that is a number or a schedule (`core/schedule.py`): finite, and never below 0."""
    return dataclasses.field(default=default, metadata={_KEY: Bound(at_least=0, finite=True, is_schedule=True)})


def bound_of(config: type, name: str) -> Bound | None:
    """The bound of a field of a config class: its own, or that of the nearest class that it extends."""
    for cls in config.__mro__:
        found = cls.__dict__.get("__dataclass_fields__", {}).get(name)
        if found is not None and _KEY in found.metadata:
            return cast(Bound, found.metadata[_KEY])
    return None


def check_bounds(config: object, path: str = "") -> None:
    """Raise a `ConfigError` for the first field of `config`, or of a config inside it, that is out of its bounds. `path` stands
    before the names of the fields.

    >>> @dataclass(frozen=True)
    ... class PPO:
    ...     clip_range: float = bounded(0.2, above=0)
    >>> check_bounds(PPO(clip_range=-1), "ppo.")
    Traceback (most recent call last):
    runnel.core.errors.ConfigError: ppo.clip_range = -1: must be above 0
    """
    for setting in settings_of(config, path):
        if (bound := bound_of(setting.owner, setting.field)) is not None:
            _check(setting, bound)


def _check(setting: Setting, bound: Bound) -> None:
    value = setting.value
    if isinstance(value, str):
        if bound.is_schedule:
            schedule.parse(value, setting.name)
        return
    entries = value if isinstance(value, tuple) else (value,)
    if all(bound.holds(x) for x in entries if isinstance(x, int | float)):
        return
    each = "each " if isinstance(value, tuple) else ""
    raise ConfigError(setting.name, value, each + bound.fix(hints_of(setting.owner)[setting.field]))
