"""Which kept version of which run answers a query, such as `win_rate=0.6..0.8, return=10.., tag=league`.

A version is known by what its run published of it: its number, its steps, and the numbers of its evaluation beside training;
and by the tags of the run. Only versions whose parameters are kept (`checkpoint.keep`, `checkpoint.best`) can answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runnel.core.errors import ConfigError
from runnel.run.best import BestParams
from runnel.run.checkpoint import MANIFEST, Checkpoints
from runnel.track.folder import RunFolder
from runnel.track.history import is_number

GRAMMAR = "in brackets stand NAME=LOW..HIGH (one end may be left out), NAME=NUMBER or tag=WORD, with commas between them"
SHOWN = 3
"""Versions that come near, in the error of a query without an answer."""
_CONDITION = re.compile(r"(?P<name>[\w.@/-]+)\s*=\s*(?P<text>\S+)")


@dataclass(frozen=True)
class Condition:
    """What one part of a query asks for: a number from `low` to `high`, or a tag of the run."""

    name: str
    low: float = -math.inf
    high: float = math.inf
    tag: str = ""


@dataclass(frozen=True)
class KnownVersion:
    """A version whose parameters are kept, and what is known of it."""

    run: RunFolder
    version: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    written: float = 0.0
    """When its parameters were written, in seconds since 1970."""

    def misses(self, condition: Condition) -> float:
        """How far this is from what is asked: 0 answers it, infinity is for what is not known of it."""
        if condition.tag:
            return 0.0 if condition.tag in self.tags else math.inf
        found = self.numbers.get(condition.name, math.nan)
        if math.isnan(found):
            return math.inf
        return max(condition.low - found, found - condition.high, 0.0)

    def told(self, names: Sequence[str]) -> str:
        """This version, with the numbers that were asked for."""
        numbers = [f"{name} {self.numbers[name]:.4g}" for name in names if name in self.numbers and name != "version"]
        return f"version {self.version} of {self.run.path}" + (f" ({', '.join(numbers)})" if numbers else "")


def parse_query(text: str) -> list[Condition]:
    """Read the conditions of a query.

    >>> parse_query("win_rate=0.6..0.8, tag=league")  # doctest: +NORMALIZE_WHITESPACE
    [Condition(name='win_rate', low=0.6, high=0.8, tag=''),
     Condition(name='tag', low=-inf, high=inf, tag='league')]
    >>> parse_query("return=10..")[0].low, parse_query("version=3")[0].high
    (10.0, 3.0)
    """
    return [_condition(part.strip(), text) for part in text.split(",")]


def _condition(part: str, query: str) -> Condition:
    found = _CONDITION.fullmatch(part)
    if found is None:
        raise ConfigError("teams", f"[{query}]", f"{part!r} is not understood; {GRAMMAR}")
    if found["name"] == "tag":
        return Condition("tag", tag=found["text"])
    low, dots, high = found["text"].partition("..")
    try:
        ends = (float(low or -math.inf), float((high if dots else low) or math.inf))
    except ValueError:
        raise ConfigError("teams", f"[{query}]", f"{part!r} is not understood; {GRAMMAR}") from None
    if not ends[0] <= ends[1] or (not low and not high):
        raise ConfigError("teams", f"[{query}]", f"{part!r} holds for nothing; write the lower number first")
    return Condition(found["name"], *ends)


def runs_in(pattern: str) -> list[RunFolder]:
    """The run in a folder, or the runs in all folders that a pattern with `*` or `?` matches."""
    if not any(sign in pattern for sign in "*?"):
        return [RunFolder.open(pattern, field="teams")]
    path = Path(pattern)
    found = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor))))
    runs = [folder for folder in map(RunFolder, found) if folder.path.is_dir() and folder.has_run()]
    if not runs:
        raise ConfigError("teams", pattern, "no folder of a run has such a name; give the folder that `runnel train` printed")
    return runs


def known_versions(run: RunFolder, member: str = "") -> list[KnownVersion]:
    """The kept versions of a run, the oldest first. Numbers that are told by policy are those of `member`, if one is named."""
    evaluated = {
        row["version"]: row for row in run.read_rows()[0] if row.get("kind") == "eval" and is_number(row.get("version"))
    }
    told = run.read_config().get("tags", ()) if run.config.exists() else ()
    tags = frozenset(map(str, told if isinstance(told, list) else ()))
    paths = [*Checkpoints(run.checkpoints).finished(), *(kept.path for kept in BestParams(run.best).kept())]
    kept = {int(path.name.partition("-")[0]): path for path in paths}
    return [
        KnownVersion(run, version, _numbers(version, evaluated.get(version, {}), member), tags, _written(path))
        for version, path in sorted(kept.items())
    ]


def _numbers(version: int, row: Mapping[str, object], member: str) -> dict[str, float]:
    extra = row.get("extra")
    pairs = {"version": version, "steps": row.get("steps"), "return": row.get("mean"), "episodes": row.get("num")}
    pairs |= extra if isinstance(extra, dict) else {}
    found = {name: float(x) for name, x in pairs.items() if is_number(x)}
    if not member:
        return found
    return found | {name.removesuffix(f"/{member}"): x for name, x in found.items() if name.endswith(f"/{member}")}


def _written(path: Path) -> float:
    try:
        return (path / MANIFEST).stat().st_mtime
    except OSError:  # a run that goes on has removed it
        return 0.0


def answer(query: str, text: str, versions: Sequence[KnownVersion], *, best: bool) -> KnownVersion:
    """The version that answers `text`: the newest, or the one with the highest `return`. Raises a `ConfigError` that says what
    there is if none does. Of several runs, the newest version is that of the run that has written one of its answers last."""
    conditions = parse_query(text) if text else []
    names = list(dict.fromkeys(c.name for c in conditions if not c.tag)) + ["return"] * best
    for name in names:
        if versions and not any(name in v.numbers for v in versions):
            there = ", ".join(sorted({known for v in versions for known in v.numbers}))
            raise ConfigError("teams", query, f"no kept version has a {name!r}; what is known of them: {there}")
    found = [v for v in versions if not any(v.misses(c) for c in conditions) and (not best or "return" in v.numbers)]
    if not found:
        raise ConfigError("teams", query, f"no kept version answers this; {_near(conditions, versions, names)}")
    if best:
        return max(found, key=lambda v: (v.numbers["return"], v.written))
    newest = max(found, key=lambda v: v.written).run.path
    return max((v for v in found if v.run.path == newest), key=lambda v: v.version)


def _near(conditions: Sequence[Condition], versions: Sequence[KnownVersion], names: Sequence[str]) -> str:
    if not versions:
        return "no version is kept there"
    ordered = sorted(versions, key=lambda v: (sum(v.misses(c) > 0.0 for c in conditions), sum(map(v.misses, conditions))))
    return "the nearest are " + "; ".join(v.told(names) for v in ordered[:SHOWN])
