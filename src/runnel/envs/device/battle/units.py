"""Kinds of units, and who meets whom: names of SMAC's maps, or lists of units that users write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.state import Array

FIELD = "env_kwargs.units"


@dataclass(frozen=True)
class Unit:
    """A kind of unit. Lengths are those of the field, times are seconds; `reload` lies between two blows."""

    health: float
    blow: float
    reach: float
    sight: float
    speed: float
    radius: float
    reload: float


UNITS = {
    "marine": Unit(45.0, 9.0, 5.0, 9.0, 3.15, 0.375, 0.61),
    "marauder": Unit(125.0, 10.0, 6.0, 10.0, 2.25, 0.5625, 1.07),
    "stalker": Unit(160.0, 13.0, 6.0, 10.0, 4.13, 0.625, 1.87),
    "zealot": Unit(150.0, 8.0, 2.0, 9.0, 3.15, 0.5, 0.86),
    "zergling": Unit(35.0, 5.0, 2.0, 8.0, 4.13, 0.375, 0.5),
    "hydralisk": Unit(80.0, 12.0, 5.0, 9.0, 3.15, 0.625, 0.59),
}
"""SMAX's numbers (Rutherford et al. 2024, arXiv:2311.10090), which are near those of StarCraft II."""

Army = tuple[str, ...]
_MARINES, _MIXED = ("marine",), ("stalker",) * 2 + ("zealot",) * 3
BATTLES: dict[str, tuple[Army, Army]] = {
    "3m": (_MARINES * 3, _MARINES * 3),
    "8m": (_MARINES * 8, _MARINES * 8),
    "2s3z": (_MIXED, _MIXED),
    "3s5z": (("stalker",) * 3 + ("zealot",) * 5,) * 2,
    "5m_vs_6m": (_MARINES * 5, _MARINES * 6),
    "10m_vs_11m": (_MARINES * 10, _MARINES * 11),
    "3s_vs_5z": (("stalker",) * 3, ("zealot",) * 5),
    "6h_vs_8z": (("hydralisk",) * 6, ("zealot",) * 8),
}
"""Allies and enemies, by the names of SMAC's maps."""


@dataclass(frozen=True)
class Sides:
    """Who fights: allies, then enemies. Units are numbered in this order."""

    allies: Army
    enemies: Army

    @property
    def units(self) -> Army:
        return self.allies + self.enemies

    @property
    def kinds(self) -> list[str]:
        """The kinds that there are, in the order of `UNITS`."""
        return [name for name in UNITS if name in self.units]

    def each(self, number: Callable[[Unit], float]) -> Array:
        """A number of every unit. `[N, 1]`"""
        return np.array([[number(UNITS[name])] for name in self.units], np.float32)


def sides_of(given: str | Sequence[Any]) -> Sides:
    """The sides of a name, or of two lists of kinds of units. Raises a `ConfigError` for anything else."""
    if isinstance(given, str):
        if given not in BATTLES:
            raise ConfigError(FIELD, given, f'use one of {", ".join(BATTLES)}, or two lists such as [["marine"], ["zealot"]]')
        return Sides(*BATTLES[given])
    if len(given) != 2 or any(isinstance(side, str) or not len(side) for side in given):
        raise ConfigError(FIELD, given, "give two lists, of allies and of enemies, none of them empty")
    allies, enemies = (tuple(side) for side in given)
    strange = sorted({repr(name) for name in allies + enemies if name not in UNITS})
    if strange:
        raise ConfigError(FIELD, given, f"there is no {', '.join(strange)}; units are {', '.join(UNITS)}")
    return Sides(allies, enemies)
