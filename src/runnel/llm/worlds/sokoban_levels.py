"""Levels of Sokoban: the rules of a move, levels made backwards from a solved one, shortest solutions, and grids as text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from runnel.core.errors import DataError

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
WALL, FLOOR, GOAL, BOX, PLAYER, BOX_ON_GOAL, PLAYER_ON_GOAL = "#-.$@*+"
WALLED = 0.1
"""Share of the inner cells that are walls."""
PULLS = 60
"""Steps of a level's way backwards."""
SIGNS = (
    f"{WALL} is a wall, {FLOOR} floor, {GOAL} a goal, {BOX} a box, {PLAYER} you, {BOX_ON_GOAL} a box on a goal, "
    f"{PLAYER_ON_GOAL} you on a goal."
)
Cell = tuple[int, int]


class Place(NamedTuple):
    """Where the player and the boxes are."""

    player: Cell
    boxes: frozenset[Cell]


@dataclass(frozen=True)
class Level:
    """What does not move (its rows have walls, floor and goals), and where all else begins."""

    rows: tuple[str, ...]
    start: Place

    @property
    def goals(self) -> frozenset[Cell]:
        return frozenset((r, c) for r, row in enumerate(self.rows) for c, x in enumerate(row) if x == GOAL)


# ------------------------------------------------------------------------------------------------------------- the rules
def pushed(level: Level, place: Place, move: str) -> Place | None:
    """Where all is after a move; None if it is blocked."""
    to = _beside(place.player, move)
    if not _free(level, to):
        return None
    if to not in place.boxes:
        return Place(to, place.boxes)
    behind = _beside(to, move)
    if not _free(level, behind) or behind in place.boxes:
        return None
    return Place(to, place.boxes - {to} | {behind})


@lru_cache(maxsize=4096)
def solution(level: Level, place: Place) -> tuple[str, ...] | None:
    """A shortest way to solve a level from here, by breadth-first search; None if there is none."""
    came: dict[Place, tuple[Place, str] | None] = {place: None}
    waiting = deque([place])
    while waiting:
        at = waiting.popleft()
        if at.boxes == level.goals:
            return tuple(_back(came, at))[::-1]
        for move in MOVES:
            after = pushed(level, at, move)
            if after is not None and after not in came:
                came[after] = at, move
                waiting.append(after)
    return None


def _back(came: dict[Place, tuple[Place, str] | None], at: Place) -> Iterator[str]:
    """The moves that led to `at`, the last one first."""
    while (step := came[at]) is not None:
        at, move = step
        yield move


def _beside(cell: Cell, move: str) -> Cell:
    return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]


def _free(level: Level, cell: Cell) -> bool:
    return level.rows[cell[0]][cell[1]] != WALL  # the outer wall keeps all cells inside


# ----------------------------------------------------------------------------------------------------------- the levels
def made_backwards(rng: np.random.Generator, size: int, boxes: int) -> Level | None:
    """A level that was played backwards from its solution: the player walks at random and pulls boxes off the goals. It starts
    where they were farthest away; None where one was then on a goal still."""
    inner = [(r, c) for r in range(1, size - 1) for c in range(1, size - 1)]
    order = [inner[i] for i in rng.permutation(len(inner)).tolist()]
    goals, player, rest = frozenset(order[:boxes]), order[boxes], order[boxes + 1 :]
    walls = {cell for cell in rest if rng.random() < WALLED}
    floor = set(inner) - walls

    def sign(cell: Cell) -> str:
        return GOAL if cell in goals else FLOOR if cell in floor else WALL

    rows = ("".join(sign((r, c)) for c in range(size)) for r in range(size))
    level = Level(tuple(rows), Place(player, goals))
    place = best = level.start
    for move in rng.integers(4, size=PULLS).tolist():
        place = _pulled(level, place, tuple(MOVES)[move])
        if _distance(place.boxes, goals) >= _distance(best.boxes, goals):
            best = place
    return replace(level, start=best) if not best.boxes & goals else None


def _distance(boxes: frozenset[Cell], goals: frozenset[Cell]) -> int:
    """Steps from each box to its nearest goal, if there were no walls: their sum."""
    return sum(min(abs(b[0] - g[0]) + abs(b[1] - g[1]) for g in goals) for b in boxes)


def _pulled(level: Level, place: Place, move: str) -> Place:
    """The player steps back, and pulls the box in front along, if there is one: what a push undoes."""
    to = _beside(place.player, move)
    if not _free(level, to) or to in place.boxes:
        return place
    front = 2 * place.player[0] - to[0], 2 * place.player[1] - to[1]
    boxes = place.boxes - {front} | {place.player} if front in place.boxes else place.boxes
    return Place(to, boxes)


def drawn(level: Level, place: Place) -> list[str]:
    """The grid as text, row by row."""
    signs = {(True, False): (BOX, BOX_ON_GOAL), (False, True): (PLAYER, PLAYER_ON_GOAL)}
    out = []
    for r, row in enumerate(level.rows):
        pairs = [(signs.get(((r, c) in place.boxes, (r, c) == place.player)), x) for c, x in enumerate(row)]
        out.append("".join(sign[x == GOAL] if sign else x for sign, x in pairs))
    return out


@lru_cache(maxsize=1024)
def read(grid: tuple[str, ...]) -> Level:
    """The level that `drawn` drew. It has one player, as many boxes as goals, and a wall around it."""
    if not all(isinstance(row, str) for row in grid):
        raise DataError(f"world 'sokoban': the grid {list(grid)!r} needs a text for each row")
    cells = {(r, c): x for r, row in enumerate(grid) for c, x in enumerate(row)}
    goals = [at for at, x in cells.items() if x in (GOAL, BOX_ON_GOAL, PLAYER_ON_GOAL)]
    boxes = frozenset(at for at, x in cells.items() if x in (BOX, BOX_ON_GOAL))
    players = [at for at, x in cells.items() if x in (PLAYER, PLAYER_ON_GOAL)]
    edge = [x for (r, c), x in cells.items() if r in (0, len(grid) - 1) or c in (0, len(grid[r]) - 1)]
    known = set(cells.values()) <= {WALL, FLOOR, GOAL, BOX, PLAYER, BOX_ON_GOAL, PLAYER_ON_GOAL}
    if not known or len(players) != 1 or len(boxes) != len(goals) or len({len(r) for r in grid}) != 1 or set(edge) != {WALL}:
        fix = "needs one @, as many $ as goals, rows of equal length, and a wall of # around it"
        raise DataError(f"world 'sokoban': the grid {list(grid)!r} {fix}")
    if boxes == frozenset(goals):
        raise DataError(f"world 'sokoban': the grid {list(grid)!r} is solved; move a box off its goal")
    fixed = {at: x if x == WALL else GOAL if at in goals else FLOOR for at, x in cells.items()}
    rows = tuple("".join(fixed[r, c] for c in range(len(row))) for r, row in enumerate(grid))
    return Level(rows, Place(players[0], boxes))
