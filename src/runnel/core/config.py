"""Configuration: frozen dataclasses in, plain data out, and errors that name the field and the fix."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from runnel.core.errors import ConfigError, UnusedSettingError
from runnel.core.hints import meant
from runnel.core.state import JsonObject, Plain, Settings

C = TypeVar("C")


def to_data(config: object) -> Plain:
    """A config as JSON-ready data.

    >>> @dataclasses.dataclass(frozen=True)
    ... class A:
    ...     x: int = 1
    ...     names: tuple[str, ...] = ("a",)
    >>> to_data(A())
    {'x': 1, 'names': ['a']}
    """
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {f.name: to_data(getattr(config, f.name)) for f in dataclasses.fields(config)}
    if isinstance(config, Mapping):
        return {str(k): to_data(v) for k, v in config.items()}
    if isinstance(config, list | tuple):
        return [to_data(v) for v in config]
    return config


@functools.lru_cache(maxsize=512)
def hints_of(config: type) -> Mapping[str, Any]:
    """The type of each field of a config class. Types are written as text in our files, and reading them takes its time."""
    return typing.get_type_hints(config)


class Setting(NamedTuple):
    """One setting of a config. Its dotted name goes through the configs inside; `owner` is the class that has the field."""

    name: str
    owner: type
    field: str
    value: object


def settings_of(config: object, path: str = "") -> Iterator[Setting]:
    """Every setting of a config, and of the configs inside it. `path` is put before the names."""
    assert dataclasses.is_dataclass(config)
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, f"{path}{f.name}.")
        else:
            yield Setting(f"{path}{f.name}", type(config), f.name, value)


def paired(one: object, other: object, name: str = "") -> Iterator[tuple[str, object, object]]:
    """Dotted name and both values of each setting of two configs of one class. Anything else is one setting, `name`."""
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        for f in dataclasses.fields(one):
            yield from paired(getattr(one, f.name), getattr(other, f.name), f"{name}.{f.name}" if name else f.name)
    else:
        yield name, one, other


def differences(before: Settings, after: Settings, path: str = "") -> dict[str, tuple[object, object]]:
    """Fields of two configs as data that differ, by dotted name: (before, after).

    >>> differences({"x": 1, "a": {"y": 2}}, {"x": 1, "a": {"y": 3}})
    {'a.y': (2, 3)}
    """
    found: dict[str, tuple[object, object]] = {}
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= differences(old, new, f"{path}{name}.")
        elif old != new:
            found[f"{path}{name}"] = (old, new)
    return found


def flat(config: Settings, prefix: str = "") -> JsonObject:
    """Nested settings, as data, under dotted names.

    >>> flat({"ppo": {"lr": 0.1}, "seed": 1})
    {'ppo.lr': 0.1, 'seed': 1}
    """
    out: JsonObject = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            out.update(flat(value, f"{prefix}{name}."))
        else:
            out[f"{prefix}{name}"] = value
    return out


def read_table(path: Path, field: str) -> JsonObject:
    """The table in a TOML file, or the object in a .json file. A `ConfigError` names `field` if the file cannot be read."""
    if not path.is_file():
        raise ConfigError(field, str(path), "there is no such file")
    is_json = path.suffix == ".json"
    try:
        text = path.read_text("utf-8")
        data = json.loads(text) if is_json else tomllib.loads(text)
    except ValueError as error:  # errors of TOML, JSON and UTF-8 are all ValueErrors
        raise ConfigError(field, str(path), f"is not {'JSON' if is_json else 'TOML'}: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(field, str(path), "must hold a JSON object of names and values")
    return data


def refuse_unused(config: object, unused: Mapping[str, str], path: str = "") -> None:
    """Raise for the first setting in `unused` that does not have its default value.

    `unused` gives dotted names of settings, or of whole groups of settings, and the reason why nothing would read them. `path`
    is put before the name of the field in the error.

    >>> @dataclasses.dataclass(frozen=True)
    ... class A:
    ...     rate: float = 0.1
    >>> refuse_unused(A(), {"rate": "nothing is learned"})
    >>> refuse_unused(A(0.2), {"rate": "nothing is learned"})
    Traceback (most recent call last):
    runnel.core.errors.UnusedSettingError: rate = 0.2: nothing is learned; leave it at 0.1
    """
    usual = type(config)()
    for name, why in unused.items():  # a name may be a whole group: then each setting in it is looked at
        for field, value, default in paired(_at(config, name), _at(usual, name), name):
            if value != default:
                raise UnusedSettingError(f"{path}{field}", value, f"{why}; leave it at {default!r}")


def default_at(config: object, name: str) -> Plain:
    """The default value of the setting with the dotted `name`."""
    return to_data(_at(type(config)(), name))


def _at(config: object, name: str) -> object:
    for part in name.split("."):
        config = getattr(config, part)
    return config


def override(config: C, changes: Settings, path: str = "") -> C:
    """A copy of `config` with `changes` applied: nested mappings, or dotted keys. Unknown keys and wrong types raise.

    >>> @dataclasses.dataclass(frozen=True)
    ... class A:
    ...     rate: float = 0.1
    >>> override(A(), {"rate": 1}).rate
    1.0
    """
    assert dataclasses.is_dataclass(config)
    assert not isinstance(config, type)
    hints = hints_of(type(config))
    names = {f.name for f in dataclasses.fields(config)}
    values: JsonObject = {}
    for key, value in _nest(changes).items():
        where = f"{path}{key}"
        if key not in names:
            close = " or ".join(f"{path}{name}" for name in meant(key, [*names, *(s.name for s in settings_of(config))]))
            hint = f"did you mean {close}?" if close else f"known fields: {', '.join(sorted(names))}"
            raise ConfigError(where, value, f"unknown field; {hint}")
        current = getattr(config, key)
        if dataclasses.is_dataclass(current) and not isinstance(current, type) and isinstance(value, Mapping):
            values[key] = override(current, value, f"{where}.")
        else:
            values[key] = _coerce(where, value, hints[key])
    return dataclasses.replace(config, **values)


def _nest(changes: Settings) -> JsonObject:
    out: JsonObject = {}
    for key, value in changes.items():
        head, _, rest = key.replace("-", "_").partition(".")
        if rest:
            inner = out.setdefault(head, {})
            if not isinstance(inner, dict):
                raise ConfigError(key, value, f"{head} is given both whole and field by field; give one")
            inner[rest] = value
        elif isinstance(out.get(head), dict):
            if not isinstance(value, Mapping):
                raise ConfigError(head, value, "given both whole and field by field; give one")
            out[head].update(value)
        else:
            out[head] = dict(value) if isinstance(value, Mapping) else value
    return out


def whole_number(text: str) -> int:
    """Read a whole number as people write it. Raises a `ValueError` for a text with a fraction, or that is not a number.

    >>> whole_number("100_000") == whole_number("1e5") == 100000
    True
    >>> whole_number("1.5e0")
    Traceback (most recent call last):
    ValueError: 1.5e0 is no whole number
    """
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if not value.is_integer():
        raise ValueError(f"{text} is no whole number")
    return int(value)


def _coerce(field: str, value: object, hint: object) -> object:
    """Convert `value` to the annotated type if that loses nothing; else raise a `ConfigError`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(value, np.generic):  # a config is plain data: JSON cannot write a numpy number
        value = value.item()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if isinstance(value, float) and int in args and float not in args:
            return _coerce(field, value, int)
        # the type that the value already has comes first: else `1` for `float | int` would become 1.0
        for option in sorted(args, key=lambda a: a is not type(value)):
            try:
                return _coerce(field, value, option)
            except ConfigError:
                continue
        raise ConfigError(field, value, f"expected {_name(hint)}")
    if hint is type(None):
        if value is None:
            return None
        raise ConfigError(field, value, "expected nothing")
    if origin is typing.Literal:
        if value in args:
            return value
        raise ConfigError(field, value, f"expected one of {', '.join(map(repr, args))}")
    if origin is tuple and isinstance(value, str):
        raise ConfigError(field, value, f"expected a list; write [{value!r}]")
    if origin is tuple and isinstance(value, list | tuple):
        hints = [args[0] if args else Any] * len(value) if not args or args[-1] is ... else list(args)
        if len(hints) != len(value):
            raise ConfigError(field, value, f"expected {len(hints)} values, got {len(value)}")
        return tuple(_coerce(f"{field}[{i}]", v, h) for i, (v, h) in enumerate(zip(value, hints, strict=True)))
    if origin in (dict, Mapping) or hint is dict:
        if isinstance(value, Mapping):
            return {k: _coerce(f"{field}.{k}", v, args[1] if args else Any) for k, v in value.items()}
        raise ConfigError(field, value, "expected a table of names and values")
    if dataclasses.is_dataclass(hint):
        if isinstance(value, typing.cast(type, hint)):
            return value
        if isinstance(value, Mapping):
            return override(typing.cast(type, hint)(), value, f"{field}.")
        raise ConfigError(field, value, f"expected a table of {_name(hint)}")
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if value != value:  # only NaN differs from itself
            raise ConfigError(field, value, "NaN compares with nothing, so it passes every check; give a number")
        return float(value)
    if hint is int and isinstance(value, float):
        if not value.is_integer():
            raise ConfigError(field, value, "expected a whole number; it has a fraction, or is not finite")
        return int(value)  # budgets are written as 1e5
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise ConfigError(field, value, f"expected {_name(hint)}, got {type(value).__name__}")


def _name(hint: object) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
