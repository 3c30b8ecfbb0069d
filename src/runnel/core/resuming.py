"""Which settings may change when a run is resumed, and which of them also while it goes on (`core/live_settings.py`).

Each config class lists its own fields in a table `on_resume`: what a changed value does, or why the field must keep its value.
A field that no table names must keep its value too. So a new setting cannot be changed in the middle of a run by accident.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from runnel.core.config import paired
from runnel.core.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class ResumeRule:
    """Whether one setting may change on resume. `text` says what the change does, or why the setting stays."""

    may_change: bool
    text: str
    live: bool = False
    """Whether it may also change while the run goes on, between two updates."""
    switches: bool = True
    """Whether a live change may switch it on or off (from 0 or None, or to it)."""


OnResume = Mapping[str, ResumeRule]
NEXT_UPDATE = "counts from the next update on"
DISCOUNTED = "the returns in the replay memory are discounted with it"
UNKNOWN = ResumeRule(False, "its config class does not say in `on_resume` that it may change (docs/guides/add-an-algorithm.md)")


def may_change(*names: str, then: str = NEXT_UPDATE) -> dict[str, ResumeRule]:
    """Fields that may have a new value on resume, and what happens `then`."""
    return dict.fromkeys(names, ResumeRule(True, then))


def live(*names: str, then: str = NEXT_UPDATE, switches: bool = True) -> dict[str, ResumeRule]:
    """Fields that may have a new value on resume, and also while the run goes on (`core/live_settings.py`)."""
    return dict.fromkeys(names, ResumeRule(True, then, live=True, switches=switches))


def stays(*names: str, why: str) -> dict[str, ResumeRule]:
    """Fields that a run keeps, and `why`."""
    return dict.fromkeys(names, ResumeRule(False, why))


def rule_of(config: type, name: str) -> ResumeRule | None:
    """The rule that the class `config`, or its nearest base class, has for the field `name`; None if there is no rule.

    >>> class A:
    ...     on_resume = stays("x", why="it is the network's")
    >>> class B(A):
    ...     on_resume = may_change("y")
    >>> rule_of(B, "x").text, rule_of(B, "y").may_change, rule_of(B, "z")
    ("it is the network's", True, None)
    """
    tables = (vars(cls).get("on_resume", {}) for cls in config.__mro__)
    return next((table[name] for table in tables if name in table), None)


def rule_at(config: object, name: str) -> ResumeRule:
    """The rule of the setting with the dotted `name` of a config."""
    *groups, own = name.split(".")
    for group in groups:
        config = getattr(config, group)
    return rule_of(type(config), own) or UNKNOWN


def check_changes(before: object, after: object, run: str) -> dict[str, tuple[object, object, str]]:
    """Changed settings of the run `run`, by dotted name: value before, value after, and what the change does.

    Raises a `ConfigError` for the first changed setting that must stay. Code and data that only moved to another folder may
    differ.
    """
    found: dict[str, tuple[object, object, str]] = {}
    for name, old, new in paired(before, after):
        if old == new:
            continue
        rule = rule_at(before, name)
        if _moved(old, new):
            found[name] = (old, new, "is the same at another place")
        elif rule.may_change:
            found[name] = (old, new, rule.text)
        else:
            fix = f"this run has {old!r} and keeps it: {rule.text}; for another value start a new run with --init-from {run}"
            raise ConfigError(name, new, fix)
    return found


def _moved(old: object, new: object) -> bool:
    """Whether two texts are paths of the same file (or of the same name in it) in different folders.

    >>> _moved("/a/my_env.py:MyEnv", "/b/c/my_env.py:MyEnv"), _moved("ALE/Pong-v5", "My/Pong-v5")
    (True, False)
    """
    if isinstance(old, tuple) and isinstance(new, tuple) and len(old) == len(new):
        return all(a == b or _moved(a, b) for a, b in zip(old, new, strict=True))
    if not (isinstance(old, str) and isinstance(new, str)):
        return False
    kinds = [text.partition(":/")[0] if ":/" in text else "" for text in (old, new)]
    paths = [Path(text.removeprefix(f"{kind}:")) for text, kind in zip((old, new), kinds, strict=True)]
    return kinds[0] == kinds[1] and all(p.is_absolute() for p in paths) and paths[0].name == paths[1].name
