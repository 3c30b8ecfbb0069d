"""The JSON schema of a function's arguments, from its signature and its docstring.

The schema is the one that transformers' `get_json_schema` makes, where that function makes one. Dataclasses and typed dicts are
written out besides, and the errors say what to write instead.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict

from runnel.core.errors import ConfigError

Schema = dict[str, Any]
_PLAIN: dict[object, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_KNOWN = "use str, int, float, bool, list[...], tuple[...], dict[str, ...], Literal[...], X | None, a dataclass or a TypedDict"
_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Returns|Return|Yields|Raises|Examples?|Notes?|References|See Also|Warnings?|Attributes):?\s*"
)
_ARGUMENTS = {"Args", "Arguments", "Parameters"}
_RULE = re.compile(r"-{3,}\s*")
_DEEPEST = 16
"""Levels of dataclasses in dataclasses."""
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


# ---------------------------------------------------------------------------------------------------------- the function
def parameters_of(function: Callable[..., Any], *, who: str, skip_self: bool = False) -> tuple[str, Schema]:
    """What the docstring of `function` says it does, and the JSON schema of its arguments. `who` names it in errors.

    >>> def add(a: int, b: int = 0) -> int:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         a: The first one.
    ...     '''
    >>> parameters_of(add, who="add")[1]["properties"]
    {'a': {'type': 'integer', 'description': 'The first one.'}, 'b': {'type': 'integer'}}
    """
    hints = hints_of(function, who)
    parameters = list(inspect.signature(function).parameters.values())[1 if skip_self else 0 :]
    said, about = read_docstring(inspect.getdoc(function) or "", [p.name for p in parameters])
    properties: Schema = {}
    for p in parameters:
        _refuse_kinds(p, who)
        if p.name not in hints:
            raise ConfigError("tools", who, f"the parameter {p.name!r} has no type; write {p.name}: str (or {_KNOWN[4:]})")
        properties[p.name] = _described(schema_of(hints[p.name], f"{who}({p.name})"), about.get(p.name, ""), f"{who}({p.name})")
    schema: Schema = {"type": "object", "properties": properties}
    if required := [p.name for p in parameters if p.default is p.empty]:
        schema["required"] = required
    return said, schema


def hints_of(function: Callable[..., Any], who: str) -> dict[str, Any]:
    """The types of a function's parameters and of what it returns."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return get_type_hints(function)
    except (NameError, TypeError) as error:
        fix = f"its types cannot be read ({error}); write types that its file imports when it is loaded"
        raise ConfigError("tools", who, fix) from error


def _refuse_kinds(p: inspect.Parameter, who: str) -> None:
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise ConfigError("tools", who, f"the parameter {p} takes any number of arguments; a model needs each one by name")
    if p.kind is p.POSITIONAL_ONLY:
        raise ConfigError("tools", who, f"the parameter {p.name!r} has no name for callers; take the / out of the signature")


def _described(schema: Schema, said: str, who: str) -> Schema:
    if not said:
        return schema
    if choices := _CHOICES.search(said):
        try:
            schema["enum"] = [c.strip() if isinstance(c, str) else c for c in json.loads(choices.group(1))]
        except (ValueError, TypeError) as error:
            fix = f'the choices in its docstring are no JSON list ({error}); write (choices: ["a", "b"])'
            raise ConfigError("tools", who, fix) from error
        said = said[: choices.start()].strip()
    return schema | {"description": said}


# -------------------------------------------------------------------------------------------------------------- its types
def schema_of(hint: Any, who: str) -> Schema:
    """The JSON schema of a type."""
    if (plain := _plain(hint)) is not None:
        return plain
    origin, args = get_origin(hint), get_args(hint)
    if origin is Union or origin is types.UnionType:
        return _union(args, who)
    if origin is Literal:
        return _literal(args, who)
    if origin in (list, Sequence):
        return {"type": "array", "items": schema_of(args[0], who)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(args[1], who)}
    if origin is tuple and len(args) > 1 and ... not in args:
        return {"type": "array", "prefixItems": [schema_of(arg, who) for arg in args]}
    if origin is None and (dataclasses.is_dataclass(hint) or is_typeddict(hint)):
        return _fields(hint, who)
    raise ConfigError("tools", who, f"its type {_shown(hint)} has no JSON schema; {_KNOWN}")


def _plain(hint: Any) -> Schema | None:
    try:
        found = _PLAIN.get(hint)
    except TypeError:  # Literal[[]] and the like cannot be hashed
        return None
    return None if found is None else dict(found)


def _union(args: Sequence[Any], who: str) -> Schema:
    """A union of plain types is a list of types, any other one an `anyOf`. None makes it `nullable`, as transformers does."""
    kinds = [schema_of(arg, who) for arg in args if arg is not type(None)]
    if any(dataclasses.is_dataclass(arg) for arg in args) and len(kinds) > 1:
        raise ConfigError("tools", who, "JSON cannot tell a dataclass from something else; take one type, or X | None")
    if len(kinds) == 1:
        found = kinds[0]
    elif all(kind.keys() == {"type"} and isinstance(kind["type"], str) for kind in kinds):
        names = sorted({kind["type"] for kind in kinds})
        found = {"type": names[0] if len(names) == 1 else names}
    else:
        found = {"anyOf": kinds}
    return found | {"nullable": True} if type(None) in args else found


def _literal(args: Sequence[Any], who: str) -> Schema:
    if wrong := [a for a in args if type(a) not in (int, float, str, bool, type(None))]:
        raise ConfigError("tools", who, f"Literal[{wrong[0]!r}] is no text, number, boolean or None, so JSON cannot hold it")
    names = list(dict.fromkeys(_PLAIN[type(a)]["type"] for a in args))
    return {"type": names[0] if len(names) == 1 else names, "enum": list(args)}


def _fields(hint: Any, who: str) -> Schema:
    """The fields of a dataclass or a typed dict as an object that has no others."""
    if who.count(".") > _DEEPEST:
        raise ConfigError("tools", who, f"the type {hint.__name__} holds itself, and a schema cannot; take a dict")
    hints = hints_of(hint, f"{who}: {hint.__name__}")
    if is_typeddict(hint):
        marks = {name: get_origin(kind) for name, kind in get_type_hints(hint, include_extras=True).items()}
        needed = [n for n in hints if marks[n] is Required or (n in hint.__required_keys__ and marks[n] is not NotRequired)]
    else:
        missing = dataclasses.MISSING
        fields = [f for f in dataclasses.fields(hint) if f.init]
        hints = {f.name: hints[f.name] for f in fields}
        needed = [f.name for f in fields if f.default is missing and f.default_factory is missing]
    properties = {name: schema_of(kind, f"{who}.{name}") for name, kind in hints.items()}
    return {"type": "object", "properties": properties} | ({"required": needed} if needed else {})


def _shown(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def from_json(hint: Any, value: Any) -> Any:
    """A checked JSON value as a value of the type `hint`: dataclasses and tuples are made, everything else stays as it is.

    >>> from_json(tuple[int, str], [1, "a"])
    (1, 'a')
    """
    origin, args = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if origin is Union or origin is types.UnionType:
        kinds = [arg for arg in args if arg is not type(None)]
        return from_json(kinds[0], value) if len(kinds) == 1 else value
    if origin in (list, Sequence) and args:
        return [from_json(args[0], item) for item in value]
    if origin in (dict, Mapping) and args:
        return {name: from_json(args[1], item) for name, item in value.items()}
    if origin is tuple or hint is tuple:
        return tuple(from_json(a, item) for a, item in zip(args or [Any] * len(value), value, strict=True))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: from_json(hints[name], item) for name, item in value.items()})
    return value


# ---------------------------------------------------------------------------------------------------------- its docstring
def read_docstring(doc: str, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """What a docstring says before its sections, and what it says of each argument (Google's or numpy's way of writing)."""
    said: list[str] = []
    section, block = "", list[str]()
    lines = doc.strip().splitlines()
    for i, line in enumerate(lines):
        ruled = i + 1 < len(lines) and _RULE.fullmatch(lines[i + 1].strip()) is not None
        head = _SECTION.fullmatch(line) if line[:1].strip() and (line.rstrip().endswith(":") or ruled) else None
        if head:
            section = head.group(1)
        elif not section:
            said.append(line)
        elif section in _ARGUMENTS and not _RULE.fullmatch(line.strip()):
            block.append(line)
    return "\n".join(said).strip(), _arguments(block, names)


def _arguments(lines: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """The text of each argument: `a: text`, `a (int): text`, or `a : int` with its text in the lines below."""
    entry = re.compile(rf"({'|'.join(map(re.escape, names))})\s*(\([^)]*\))?\s*(:|$)\s*(.*)") if names else None
    filled = [line for line in lines if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    found: dict[str, list[str]] = {}
    current = ""
    for line in filled:
        head = entry.fullmatch(line.strip()) if entry and len(line) - len(line.lstrip()) == indent else None
        if head:
            current = head.group(1)
            found[current] = [] if indent == 0 else [head.group(4).strip()]  # numpy writes the type there
        elif current:
            found[current].append(line.strip())
    return {name: " ".join(part for part in texts if part) for name, texts in found.items()}
