"""Maps of kitchens: five with names, and those that users write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from runnel.core.errors import ConfigError

FLOOR, COUNTER, ONIONS, DISHES, POT, WINDOW = range(6)
"""Kinds of cells. Things lie on counters and in pots; onions and dishes come from piles; soups leave through a window."""
LETTERS = {" ": FLOOR, "X": COUNTER, "O": ONIONS, "D": DISHES, "P": POT, "S": WINDOW}
NUM_COOKS = 2
STARTS = "12"
STEPS = ((-1, 0), (1, 0), (0, 1), (0, -1))
"""North, south, east, west, as rows and columns. Numbers as Overcooked-AI has them."""
FIELD = "env_kwargs.layout"

LAYOUTS = {
    "cramped_room": (
        "XXPXX",
        "O  2O",
        "X1  X",
        "XDXSX",
    ),
    "asymmetric_advantages": (
        "XXXXXXXXX",
        "O XSXOX S",
        "X   P 1 X",
        "X2  P   X",
        "XXXDXDXXX",
    ),
    "coordination_ring": (
        "XXXPX",
        "X 1 P",
        "D2X X",
        "O   X",
        "XOSXX",
    ),
    "forced_coordination": (
        "XXXPX",
        "O X1P",
        "O2X X",
        "D X X",
        "XXXSX",
    ),
    "counter_circuit": (
        "XXXPPXXX",
        "X  2   X",
        "D XXXX S",
        "X  1   X",
        "XXXOOXXX",
    ),
}
"""The five of Carroll et al. 2019: counters X, piles of onions O and dishes D, pots P, windows S, and where cooks begin."""


@dataclass(frozen=True)
class KitchenMap:
    """A kitchen. Cells are numbered row after row."""

    rows: tuple[str, ...]

    @property
    def height(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        return len(self.rows[0])

    @property
    def starts(self) -> list[int]:
        """The cells where the cooks begin."""
        text = "".join(self.rows)
        return [text.index(number) for number in STARTS]

    @cached_property
    def ground(self) -> NDArray[np.int64]:
        """The kind of each cell. `[cells]`"""
        return np.array([LETTERS.get(letter, FLOOR) for letter in "".join(self.rows)], np.int64)

    @cached_property
    def ahead(self) -> NDArray[np.int64]:
        """The cell beside each cell of the floor, in each direction. `[4, cells]`"""
        cells = np.arange(len(self.ground))
        beside = np.stack([cells + down * self.width + right for down, right in STEPS])
        # nobody stands anywhere else
        return np.where(self.ground == FLOOR, beside, cells)

    def cells(self, kind: int) -> list[int]:
        return np.flatnonzero(self.ground == kind).tolist()

    @cached_property
    def places(self) -> list[int]:
        """The cells where a thing can be put down: counters that somebody can stand at, then all pots."""
        reached = set(self.ahead[:, self.ground == FLOOR].reshape(-1).tolist())
        return [cell for cell in self.cells(COUNTER) if cell in reached] + self.cells(POT)

    @property
    def num_pots(self) -> int:
        return len(self.cells(POT))


def layout_of(given: str | Sequence[str]) -> KitchenMap:
    """The layout of a name, or of rows of letters. Raises a `ConfigError` for what is not a kitchen."""
    if isinstance(given, str):
        if given not in LAYOUTS:
            raise ConfigError(
                FIELD, given, f"use one of {', '.join(LAYOUTS)}, or a list of rows such as {[*LAYOUTS['cramped_room']]}"
            )
        return KitchenMap(LAYOUTS[given])
    rows = tuple(given)
    if not rows or not all(isinstance(row, str) for row in rows) or len({len(row) for row in rows}) != 1:
        raise ConfigError(FIELD, given, "give rows of letters, all of one length")
    text = "".join(rows)
    strange = sorted(set(text) - {*LETTERS, *STARTS})
    if strange:
        why = "; there are no tomatoes here" if "T" in strange else ""
        raise ConfigError(FIELD, given, f"{strange} is no cell: use X, O, D, P, S, spaces, 1 and 2{why}")
    for letter, what in (("1", "the first cook begins"), ("2", "the second cook begins")):
        if text.count(letter) != 1:
            raise ConfigError(FIELD, given, f"put exactly one {letter} where {what}")
    for letter, what in (("O", "a pile of onions"), ("D", "a pile of dishes"), ("P", "a pot"), ("S", "a window")):
        if letter not in text:
            raise ConfigError(FIELD, given, f"put {letter}, {what}, somewhere")
    layout = KitchenMap(rows)
    rim = [*rows[0], *rows[-1], *(row[0] for row in rows), *(row[-1] for row in rows)]
    if any(letter == " " or letter in STARTS for letter in rim):
        raise ConfigError(FIELD, given, "close the rim with counters X: nobody may stand there")
    return layout
