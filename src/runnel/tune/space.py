"""Search spaces: which values are tried for each field of a recipe.

    ppo.gamma=0.9..0.999            any number between, uniform
    ppo.lr=log(1e-5, 1e-2)          any number between, uniform in its logarithm
    num_envs=int(4, 64)             a whole number; int(4, 64, log) in its logarithm
    ppo.clip_range={0.1, 0.2, 0.3}        one of these; words, true, false, none and lists [64, 64] too

The type of the field decides the rest: `4..64` of a field that takes whole numbers gives whole numbers.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runnel.core.config import flat, hints_of, override, read_table, settings_of, to_data
from runnel.core.errors import ConfigError
from runnel.core.state import State
from runnel.graphs.run_config import BUDGETS, RunConfig

GRAMMAR = "write low..high, log(low, high), int(low, high), int(low, high, log) or {a, b, c}"
Value = Any
"""A setting as a person or a file gives it: a number, a text, a bool, None, or a list of those."""
OWN = {"seed", "out", "name", "tags", "init_from"}
"""Fields that a study sets itself."""


@dataclass(frozen=True)
class Param:
    """The search space of one field."""

    name: str
    kind: Literal["float", "int", "choice"]
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[Value, ...] = ()

    def ends(self) -> list[Value]:
        """The values that are checked before a study starts: all choices, or both ends of a range."""
        return list(self.choices) if self.kind == "choice" else [self._number(self.low), self._number(self.high)]

    def inside(self, most: int = 32) -> list[Value]:
        """Whole numbers between the ends, at most `most`. A setting may not work there though both ends do."""
        if self.kind != "int":
            return []
        between = list(range(int(self.low) + 1, int(self.high)))
        return between if len(between) <= most else self.grid(most + 2)[1:-1]

    def labels(self) -> list[Value]:
        """The choices as scalars, which Optuna needs: a list becomes its JSON text."""
        return [json.dumps(c) if isinstance(c, list) else c for c in self.choices]

    def value_of(self, label: Value) -> Value:
        """The choice that a label stands for; a number of a range stands for itself."""
        return self.choices[self.labels().index(label)] if self.kind == "choice" else label

    def label_of(self, value: Value) -> Value:
        """Undo `value_of`."""
        return json.dumps(value) if isinstance(value, list) else value

    def grid(self, num: int) -> list[Value]:
        """At most `num` values, evenly spread over a range; all of the choices.

        >>> Param("x", "float", 0.01, 1.0, log=True).grid(3), Param("n", "int", 1, 3).grid(9)
        ([0.01, 0.1, 1.0], [1, 2, 3])
        """
        if self.kind == "choice":
            return list(self.choices)
        shares = [i / max(num - 1, 1) for i in range(num)]
        return list(dict.fromkeys(self._at(share) for share in shares))

    def draw(self, chance: random.Random) -> Value:
        """A value at random."""
        if self.kind == "choice":
            return chance.choice(self.choices)
        return self._at(chance.random())

    def perturb(self, value: Value, chance: random.Random) -> Value:
        """A neighbour of `value`: a number times 0.8 or 1.25, within the range; the choice before or behind."""
        if self.kind == "choice":
            at = self.choices.index(value) + chance.choice((-1, 1))
            return self.choices[min(max(at, 0), len(self.choices) - 1)]
        factor = chance.choice((0.8, 1.25))
        moved = value * factor
        if self.kind == "int" and round(moved) == value:  # a small whole number would never move
            moved = value + (1 if factor > 1 else -1)
        return self._number(min(max(moved, self.low), self.high))

    def _at(self, share: float) -> Value:
        if self.log:
            return self._number(math.exp(math.log(self.low) + share * math.log(self.high / self.low)))
        return self._number(self.low + share * (self.high - self.low))

    def _number(self, value: float) -> Value:
        clipped = min(max(value, self.low), self.high)
        return (
            round(clipped) if self.kind == "int" else float(f"{clipped:.6g}") if value not in (self.low, self.high) else value
        )

    def to_data(self) -> State:
        """For study.json."""
        if self.kind == "choice":
            return {"kind": "choice", "low": None, "high": None, "log": False, "choices": to_data(self.choices)}
        return {"kind": self.kind, "low": self.low, "high": self.high, "log": self.log, "choices": []}

    @staticmethod
    def from_data(name: str, data: State) -> Param:
        """Undo `to_data`."""
        return Param(name, data["kind"], data["low"], data["high"], data["log"], tuple(data["choices"]))


def read_space(search: Sequence[str], config: RunConfig) -> dict[str, Param]:
    """Read a search space: words `field=what`, or one TOML file. `config` has the fields and their types."""
    texts = _read_file(search[0]) if len(search) == 1 and "=" not in search[0] else dict(map(_split, search))
    if not texts:
        raise ConfigError("search", list(search), f'names no field; write "ppo.lr=log(1e-5, 1e-2)": {GRAMMAR}')
    if len(texts) < len(search):
        raise ConfigError("search", list(search), "names a field twice")
    return {name: parse(name, text, config) for name, text in texts.items()}


def _split(word: str) -> tuple[str, Value]:
    name, found, text = word.partition("=")
    if not found or not name.strip():
        raise ConfigError("search", word, f'write "field=what", such as "ppo.lr=log(1e-5, 1e-2)": {GRAMMAR}')
    return name.strip().replace("-", "_"), text.strip()


def _read_file(path: str) -> dict[str, Value]:
    if not Path(path).is_file():
        raise ConfigError("search", path, 'there is no such file; or write "field=what", such as "ppo.lr=log(1e-5, 1e-2)"')
    return {name.replace("-", "_"): value for name, value in flat(read_table(Path(path), "search")).items()}


def parse(name: str, text: Value, config: RunConfig) -> Param:
    """One field's space, checked against the field's own type; a list is choices."""
    head = name.partition(".")[0]
    if head in OWN or head in BUDGETS or head in ("checkpoint", "eval"):
        fix = "is not searched: trials differ in what is trained, not in how long, where or how measured"
        raise ConfigError(name, text, fix)
    hint = _hint(config, name, text)
    if isinstance(text, list):
        return _fits(_choices(name, text), config)
    if not isinstance(text, str):
        raise ConfigError(name, text, f"give a text or a list: {GRAMMAR}")
    if text.startswith("{") and text.endswith("}"):
        return _fits(_choices(name, [_literal(part) for part in _parts(text[1:-1])]), config)
    return _fits(_range(name, text, whole=hint is int), config)


def _hint(config: RunConfig, name: str, text: Value) -> Value:
    """The annotation of a field. For an unknown field the config raises, and suggests the nearest name."""
    known = {setting.name: setting for setting in settings_of(config)}
    if name in known:
        return hints_of(known[name].owner)[known[name].field]
    if inside := next((other for other in known if other.startswith(f"{name}.")), ""):
        raise ConfigError(name, text, f"is a group of fields; name one of them, such as {inside}")
    if owner := next((other for other in known if name.startswith(f"{other}.")), ""):
        raise ConfigError(name, text, f"{owner} has no fields of its own")
    override(config, {name: text})
    raise AssertionError("a config has refused a field that it does not have")


def _range(name: str, text: str, *, whole: bool) -> Param:
    found = re.fullmatch(r"(log|int)\(([^,()]+),([^,()]+)(?:,\s*(log)\s*)?\)", text)
    ends = (found[2], found[3]) if found else tuple(text.split("..")) if text.count("..") == 1 else ()
    if len(ends) != 2 or (found and found[1] == "log" and found[4]):
        raise ConfigError(name, text, GRAMMAR)
    try:
        low, high = (float(end) for end in ends)
    except ValueError as error:
        raise ConfigError(name, text, f"{error}; {GRAMMAR}") from None
    log = bool(found and (found[1] == "log" or found[4]))
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(name, text, "a range goes from a finite number up to a larger one")
    if log and low <= 0:
        raise ConfigError(name, text, "a logarithm needs a range above 0")
    if not (whole or (found and found[1] == "int")):
        return Param(name, "float", low, high, log)
    if not (low.is_integer() and high.is_integer()):
        raise ConfigError(name, text, "takes whole numbers; give whole ends")
    return Param(name, "int", int(low), int(high), log)


def _choices(name: str, values: list[Value]) -> Param:
    if len(values) < 2:
        raise ConfigError(name, values, "choose among at least two; else set the field")
    labels = [json.dumps(v) for v in values]
    if len(set(labels)) < len(labels):
        raise ConfigError(name, values, "a choice is there twice")
    return Param(name, "choice", choices=tuple(values))


def _fits(param: Param, config: RunConfig) -> Param:
    for value in param.ends():
        override(config, {param.name: value})
    return param


def _parts(text: str) -> list[str]:
    """The parts between commas that are in no bracket.

    >>> _parts("linear(1e-3, 0), 3e-4")
    ['linear(1e-3, 0)', '3e-4']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _literal(text: str) -> Value:
    """A number, true, false, none, a list of those, or else a word."""
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    if text.startswith("[") and text.endswith("]"):
        return [_literal(part) for part in _parts(text[1:-1]) if part]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.strip("\"'")
