"""Schedules: a number that depends on progress in [0, 1], written so that it fits on a command line."""

from __future__ import annotations

import math

from runnel.core.errors import ConfigError


def at(schedule: str | float, progress: float) -> float:
    """The value of `schedule` at `progress`.

    A schedule is a number, `linear(a, b)` (from a to b over the whole run), or `linear(a, b, f)` (over the first share f,
    then b).

    >>> at(0.1, 0.5), at("linear(1, 0)", 0.25), at("linear(1, 0.1, 0.5)", 0.75)
    (0.1, 0.75, 0.1)
    """
    if isinstance(schedule, int | float):
        return float(schedule)
    start, end, share = parse(schedule)
    x = min(max(progress, 0.0) / share, 1.0)
    return end if x == 1.0 else start + (end - start) * x


def parse(schedule: str | float, field: str = "schedule") -> tuple[float, float, float]:
    """`(start, end, share)` of a schedule, or a `ConfigError` that names `field`."""
    if isinstance(schedule, int | float):
        return _checked(float(schedule), float(schedule), 1.0, field)
    text = schedule.strip()
    try:
        if not text.startswith("linear("):
            value = float(text)
            return _checked(value, value, 1.0, field)
        if not text.endswith(")"):
            raise ValueError("no closing bracket")
        start, end, *rest = [float(p) for p in text.removeprefix("linear(").removesuffix(")").split(",")]
        (share,) = rest or [1.0]
    except ValueError as error:
        raise ConfigError(field, schedule, "write a number, linear(start, end) or linear(start, end, share)") from error
    if not 0.0 < share <= 1.0:
        raise ConfigError(field, schedule, "the share of a schedule must be above 0 and at most 1")
    return _checked(start, end, share, field)


def _checked(start: float, end: float, share: float, field: str) -> tuple[float, float, float]:
    for value in (start, end):
        if not 0.0 <= value < math.inf:
            raise ConfigError(field, value, "a schedule needs finite numbers that are not negative")
    return start, end, share
