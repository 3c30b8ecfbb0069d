"""Requirements of runnel and of its extras, read from the metadata of installed packages, so no list can be outdated."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OWN = "runnel"


@dataclass(frozen=True)
class Extra:
    """A required package: its installed version (empty: none), and whether this version is good enough."""

    name: str
    version: str
    wanted: str
    good: bool

    def __str__(self) -> str:
        if not self.version:
            return self.name
        return f"{self.name} {self.version}" + ("" if self.good else f" (needs {self.wanted})")


def extras_of(package: str = OWN) -> list[str]:
    """The extras that an installed package declares; empty if it is not installed."""
    try:
        return list(importlib.metadata.metadata(package).get_all("Provides-Extra") or [])
    except importlib.metadata.PackageNotFoundError:
        return []


def parts_of(extra: str = "", *, package: str = OWN) -> list[Extra]:
    """Packages that `extra` of `package` requires, with those of other packages' extras (`gymnasium[mujoco]`).

    With "" as the extra: the packages that `package` always requires. Empty if `package` is not installed.
    """
    found: dict[str, Requirement] = {}
    for need in _needs(package, extra, set()):
        found.setdefault(canonicalize_name(need.name), need)
    return [_part(need) for need in found.values()]


def _needs(package: str, extra: str, seen: set[tuple[str, str]]) -> Iterator[Requirement]:
    if (package, extra) in seen:
        return
    seen.add((package, extra))
    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for need in map(Requirement, lines):
        if not _counts(need, extra):
            continue
        name = canonicalize_name(need.name)
        if name != OWN:
            yield need
        for inner in sorted(need.extras):
            yield from _needs(name, inner, seen)


def _counts(need: Requirement, extra: str) -> bool:
    """Whether a requirement is for `extra` on this machine; "" means requirements without an extra."""
    if need.marker is None:
        return not extra
    alone = need.marker.evaluate({"extra": ""})
    return alone if not extra else not alone and need.marker.evaluate({"extra": extra})


def _part(need: Requirement) -> Extra:
    try:
        version = importlib.metadata.version(need.name)
    except importlib.metadata.PackageNotFoundError:
        return Extra(need.name, "", str(need.specifier), good=False)
    return Extra(need.name, version, str(need.specifier), good=need.specifier.contains(version, prereleases=True))
