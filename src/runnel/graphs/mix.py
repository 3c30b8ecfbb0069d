"""Batches from several sources: the share of their rows that comes from each stream beside the run's own."""

from __future__ import annotations

from collections.abc import Sequence

from runnel.core.errors import ConfigError


def share_of(mix: Sequence[str], stream: str) -> float:
    """The share that `mix`, a list of NAME=SHARE, gives to `stream`, the one stream that may be named; 0 without it.

    >>> share_of(("demos=0.2",), "demos"), share_of((), "demos")
    (0.2, 0.0)
    """
    if not mix:
        return 0.0
    name, equals, share = mix[0].partition("=")
    if len(mix) > 1 or name != stream or not equals:
        raise ConfigError("mix", tuple(mix), f"give one NAME=SHARE; the name is {stream}, as in {stream}=0.5")
    try:
        found = float(share)
    except ValueError:
        found = 0.0
    if not 0.0 < found < 1.0:
        raise ConfigError("mix", tuple(mix), f"{share!r} is no share of a batch; give a number between 0 and 1")
    return found


def rows_of(share: float, others: int) -> int:
    """Rows that are a share of a batch beside `others` rows, at least one.

    >>> rows_of(0.2, 64), rows_of(0.5, 128), rows_of(0.01, 8)
    (16, 128, 1)
    """
    return max(1, round(others * share / (1.0 - share)))
