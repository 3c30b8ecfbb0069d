"""Checks of a call's arguments against their JSON schema, in words that a model can act on.

What is checked: types, `nullable`, `enum`, `const`, `items`, `prefixItems`, `properties`, `required`, `additionalProperties`,
`anyOf` and `oneOf`. Other keywords (a schema of MCP may have them) are left to the tool, and so are these where what they say
is no schema. Nothing is converted: a wrong type is told. An object that names its properties refuses others, unless its schema
allows them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS = {
    "integer": "an integer",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_SHOWN = 60


def wrong_arguments(schema: Mapping[str, Any], arguments: object) -> str | None:
    """Say what is wrong with the arguments of a call, as a sentence that names the argument; None if nothing is.

    >>> schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    >>> wrong_arguments(schema, {"a": 1}), wrong_arguments(schema, {"a": 1.5})
    (None, "the argument 'a' must be an integer, but it is 1.5")
    >>> wrong_arguments(schema, {"a": 1, "b": 2})
    "there is no argument 'b'; the arguments are 'a'"
    """
    if not isinstance(arguments, Mapping):
        return f"the arguments must be an object of names and values, but they are {_shown(arguments)}"
    return _wrong_fields(schema, arguments, "") or _wrong_union(schema, arguments, "the arguments")


def _wrong(schema: object, value: object, where: str) -> str | None:
    if not isinstance(schema, Mapping) or (value is None and schema.get("nullable")):
        return None
    named = schema.get("type")
    kinds = [named] if isinstance(named, str) else [kind for kind in _listed(schema, "type") if isinstance(kind, str)]
    if kinds and not any(_is(value, kind) for kind in kinds):
        return f"{where} must be {' or '.join(_WORDS.get(k, k) for k in kinds)}, but it is {_shown(value)}"
    choices = [schema["const"]] if "const" in schema else _listed(schema, "enum")
    if choices and not any(_same(value, choice) for choice in choices):
        return f"{where} must be {' or '.join(_shown(c) for c in choices)}, but it is {_shown(value)}"
    if isinstance(value, Mapping):
        return _wrong_fields(schema, value, where) or _wrong_union(schema, value, where)
    if isinstance(value, list):
        return _wrong_items(schema, value, where) or _wrong_union(schema, value, where)
    return _wrong_union(schema, value, where)


def _wrong_fields(schema: Mapping[str, Any], value: Mapping[str, Any], where: str) -> str | None:
    named = schema.get("properties")
    properties: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
    others = schema.get("additionalProperties", "properties" not in schema)
    for name in _listed(schema, "required"):
        if isinstance(name, str) and name not in value:
            return f"{_place(where, name)} is missing"
    for name, item in value.items():
        if name in properties:
            wrong = _wrong(properties[name], item, _place(where, name))
        elif others is False:
            there = f"the arguments are {_names(properties)}" if properties else "it takes none"
            return f"there is no argument {_path(where, name)!r}; {there}"
        else:
            wrong = _wrong(others, item, _place(where, name))
        if wrong:
            return wrong
    return None


def _wrong_items(schema: Mapping[str, Any], value: Sequence[object], where: str) -> str | None:
    first = _listed(schema, "prefixItems")
    if first and len(value) != len(first):
        return f"{where} must be a list of {len(first)}, but it has {len(value)}"
    for i, item in enumerate(value):
        if wrong := _wrong(first[i] if first else schema.get("items"), item, _place(where, str(i))):
            return wrong
    return None


def _wrong_union(schema: Mapping[str, Any], value: object, where: str) -> str | None:
    kinds = _listed(schema, "anyOf") or _listed(schema, "oneOf")
    if not kinds:
        return None
    found = [_wrong(kind, value, where) for kind in kinds]
    return None if None in found else f"{found[0]} (or another of the {len(kinds)} forms that it may have)"


def _listed(schema: Mapping[str, Any], keyword: str) -> Sequence[Any]:
    """What a keyword lists; nothing, where it is no list: a schema of a server may be anything."""
    found = schema.get(keyword)
    return found if isinstance(found, list | tuple) else ()


def _is(value: object, kind: str) -> bool:
    """Whether a JSON value has a type of JSON schema. A boolean is no number, and 1.0 is no integer."""
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return _is(value, "integer") or (isinstance(value, float) and math.isfinite(value))
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
    return True  # a type that we do not know is the tool's to check


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def _path(where: str, name: str) -> str:
    """`a.b`, for the field `b` of what `where` names."""
    return f"{where[len(_PREFIX) : -1]}.{name}" if where else name


_PREFIX = "the argument '"


def _place(where: str, name: str) -> str:
    return f"{_PREFIX}{_path(where, name)}'"


def _names(properties: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in properties)


def _shown(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value).__name__)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."
