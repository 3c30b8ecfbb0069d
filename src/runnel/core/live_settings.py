"""Live settings: those that may change while a run goes on, between two updates.

A config class marks its live fields in `on_resume` (`live` in `core/resuming.py`). A learner that reads its settings from its
config at every update takes a new value by `LiveConfig.set`; which version uses it first is up to its trainer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from runnel.core.bounds import check_bounds
from runnel.core.config import override
from runnel.core.errors import ConfigError
from runnel.core.resuming import rule_of

C = TypeVar("C")


def live_fields(config: type) -> list[str]:
    """The fields of a config class that may change while a run goes on.

    >>> from runnel.core.resuming import live, stays
    >>> @dataclasses.dataclass(frozen=True)
    ... class A:
    ...     on_resume = live("rate") | stays("width", why="it is the network's")
    ...     rate: float = 0.1
    ...     width: int = 64
    >>> live_fields(A)
    ['rate']
    """
    rules = {f.name: rule_of(config, f.name) for f in dataclasses.fields(config)}
    return [name for name, rule in rules.items() if rule is not None and rule.live]


def with_live(config: C, name: str, value: object) -> C:
    """A copy of `config` with another value of its live field `name`. Raises a `ConfigError` for any other field, and for a
    value that the field cannot have.

    >>> from runnel.core.resuming import live
    >>> @dataclasses.dataclass(frozen=True)
    ... class A:
    ...     on_resume = live("rate")
    ...     rate: float = 0.1
    >>> with_live(A(), "rate", 1)
    A(rate=1.0)
    """
    known = live_fields(type(config))
    if name not in known:
        raise not_live(name, value, known)
    changed = override(config, {name: value})
    check_bounds(changed)
    rule, before, after = rule_of(type(config), name), getattr(config, name), getattr(changed, name)
    if rule is not None and not rule.switches and bool(before) != bool(after):
        fix = f"is {before!r} now, and switching it on or off changes what the run is made of; stop the run, and resume with it"
        raise ConfigError(name, value, fix)
    return changed


def not_live(name: str, value: object, known: Iterable[str]) -> ConfigError:
    """The error for a setting that may not change while a run goes on; `known` are those that may."""
    names = ", ".join(known)
    told = f"live settings here: {names}" if names else "nothing here is live"
    return ConfigError(name, value, f"may not change while a run goes on; {told}")


class LiveConfig:
    """`set` of a learner that reads its settings from `self.config` at every update (`HasLiveSettings`)."""

    config: Any

    @property
    def takes(self) -> Mapping[type, Sequence[str]]:
        """The live fields of its config."""
        return {type(self.config): live_fields(type(self.config))}

    def set(self, name: str, value: object) -> None:
        """Use another value of a live field of its config from the next `prepare` on."""
        self.config = with_live(self.config, name, value)
