"""A battle from above, in letters."""

from __future__ import annotations

from runnel.envs.device.base import Leaves
from runnel.envs.device.battle.field import SIDE
from runnel.envs.device.battle.units import UNITS, Sides

COLUMNS, ROWS = 64, 32


def picture(sides: Sides, state: Leaves, world: int) -> str:
    """The field, two letters to a length across and one upwards: allies by their numbers from 0, enemies by letters from a;
    below it, the health of both sides."""
    one = {key: state[key][world].tolist() for key in ("x", "y", "health")}
    num, cells = len(sides.allies), {}
    for i, (x, y, health) in enumerate(zip(one["x"], one["y"], one["health"], strict=True)):
        if health > 0:
            row, column = int((SIDE - y) * ROWS / SIDE), int(x * COLUMNS / SIDE)
            cells[min(row, ROWS - 1), min(column, COLUMNS - 1)] = _mark(i, num)
    rows = ["".join(cells.get((r, c), ".") for c in range(COLUMNS)) for r in range(ROWS)]
    units = list(enumerate(zip(sides.units, one["health"], strict=True)))
    rows += [", ".join(f"{_mark(i, num)} {name} {health / UNITS[name].health:.0%}" for i, (name, health) in part)
             for part in (units[:num], units[num:])]  # fmt: skip
    return "\n".join(rows)


def _mark(i: int, num: int) -> str:
    return chr(ord("0") + i) if i < num else chr(ord("a") + i - num)
