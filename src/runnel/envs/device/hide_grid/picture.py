"""A world of the grid from above, in letters."""

from __future__ import annotations

from runnel.envs.device.base import Leaves
from runnel.envs.device.hide_grid.plan import HIDERS, SIZE, WALL, WIDTH, GridSizes


def picture(sizes: GridSizes, state: Leaves, world: int) -> str:
    """The board as lines of text: walls `#`, blocks `o` (locked by hiders `O`, by seekers `X`), the ladder `L`, hiders `h` and
    seekers `s` (on a wall or a block `H` and `S`). Who stands somewhere hides what is below."""
    one = {key: state[key][world].tolist() for key in ("ground", "things", "locks", "agents", "up")}
    marks = {cell: "#" for cell, kind in enumerate(one["ground"]) if kind == WALL}
    marks |= {cell: "oOX"[lock] for cell, lock in zip(one["things"], one["locks"], strict=True)}
    marks[one["things"][-1]] = "L"
    for cell, up, team in zip(one["agents"], one["up"], sizes.teams, strict=True):
        mark = "h" if team == HIDERS else "s"
        marks[cell] = mark.upper() if up else mark
    rows = ([marks.get((r + 1) * WIDTH + c + 1, ".") for c in range(SIZE)] for r in range(SIZE))
    return "\n".join("".join(row) for row in rows)
