"""A maze in words: who walks in it sees along the corridors only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from runnel.core.contracts.chat import Turn
from runnel.core.rng import make_rng
from runnel.core.state import Settings
from runnel.llm.worlds.world import World, entry_between, last_word, splits, whole

MOVES = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
NUMBERS = 2**31
Cell = tuple[int, int]
Doors = dict[Cell, frozenset[str]]
"""By cell (row and column), the moves that no wall stops."""


class Maze(World):
    """Find the exit of a maze of `size` by `size` cells. Reward 1 at the exit; after `max_turns` the walk is cut off.

    A maze is made of its number, by a walk that opens a wall to a cell that it has not been to, and goes back where there is
    none: there is exactly one way between any two cells. The start is the north-west corner, the exit the cell that is
    farthest from it. A move is the last of the words north, east, south and west in the message. Told are the cell, and for
    each open side how far one can see: the exit is seen if it is there. The key of a turn is the cell.
    """

    name = "maze"

    def __init__(self, *, size: int = 4, max_turns: int = 30, num_train: int = 10_000, num_eval: int = 256) -> None:
        super().__init__()
        self._size = whole("maze.size", size, 2, 20)
        self._max_turns = whole("maze.max_turns", max_turns, 1, 10_000)
        self._sizes = whole("maze.num_train", num_train, 1, 10**9), whole("maze.num_eval", num_eval, 1, 10**9)

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        return splits(self, *self._sizes)

    def draw(self, rng: np.random.Generator) -> Settings:
        return {"maze": int(rng.integers(NUMBERS))}

    def begin(self, task: Settings) -> Turn:
        self.now |= {"size": self._size, "cell": [0, 0]}
        entry_between(task, "maze", 0, NUMBERS - 1, self.name)
        rules = f"You are in a maze of {self._size} rows and {self._size} columns. Find the exit."
        return Turn(f"{rules} Reply with one word: {', '.join(MOVES)}.\n{self._seen()}", key=self._key())

    def answer(self, text: str) -> Turn:
        move, last = last_word(text, tuple(MOVES)), self.now["turns"] >= self._max_turns
        if move is None:
            return Turn(f"I see no move in your message. {self._seen()}", key=self._key(), truncated=last)
        doors, exit_cell = self._maze()
        cell = self._cell()
        if move not in doors[cell]:
            return Turn(f"There is a wall. {self._seen()}", key=self._key(), truncated=last)
        self.now["cell"] = list(moved(cell, move))
        if self._cell() == exit_cell:
            return Turn("You are at the exit.", 1.0, terminated=True, key=self._key())
        return Turn(self._seen(), key=self._key(), truncated=last)

    def script(self) -> str:
        """The next move of the way to the exit."""
        doors, exit_cell = self._maze()
        return ways_to(doors, exit_cell)[self._cell()][0]

    def _maze(self) -> tuple[Doors, Cell]:
        return made(self.now["task"]["maze"], self.now["size"])

    def _cell(self) -> Cell:
        row, column = self.now["cell"]
        return row, column

    def _key(self) -> str:
        return "{},{}".format(*self.now["cell"])

    def _seen(self) -> str:
        """The cell, and what is seen in each direction."""
        doors, exit_cell = self._maze()
        cell = self._cell()
        views = []
        for move in MOVES:
            far, at, exits = 0, cell, ""
            while move in doors[at]:
                far, at = far + 1, moved(at, move)
                exits = f" (the exit is {far} away)" if at == exit_cell else exits
            if far:
                views.append(f"{move} {far}{exits}")
        return f"You are in row {cell[0] + 1}, column {cell[1] + 1}. Free cells: {', '.join(views)}."


def moved(cell: Cell, move: str) -> Cell:
    """The cell behind a move."""
    return cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]


@lru_cache(maxsize=1024)
def made(number: int, size: int) -> tuple[Doors, Cell]:
    """The doors and the exit of a maze."""
    rng, opened = make_rng(0, "maze", size, number), {(r, c): set[str]() for r in range(size) for c in range(size)}
    path, seen = [(0, 0)], {(0, 0)}
    while path:
        free = [m for m in MOVES if moved(path[-1], m) in opened and moved(path[-1], m) not in seen]
        if not free:
            path.pop()
            continue
        move = free[int(rng.integers(len(free)))]
        opened[path[-1]].add(move)
        path.append(moved(path[-1], move))
        opened[path[-1]].add(BACK[move])
        seen.add(path[-1])
    doors = {cell: frozenset(moves) for cell, moves in opened.items()}
    far = ways_to(doors, (0, 0))
    return doors, max(doors, key=lambda cell: (far[cell][1], cell))


def ways_to(doors: Doors, goal: Cell) -> dict[Cell, tuple[str, int]]:
    """For each cell the first move of a shortest way to `goal`, and its length."""
    ways, waiting = {goal: ("", 0)}, deque([goal])
    while waiting:
        cell = waiting.popleft()
        for move in sorted(doors[cell]):
            if (other := moved(cell, move)) not in ways:
                ways[other] = BACK[move], ways[cell][1] + 1
                waiting.append(other)
    return ways
