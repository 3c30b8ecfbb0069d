"""Sokoban: push all boxes onto goals. Every level was made backwards from a solved one, and so can be solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from runnel.core.contracts.chat import REWARD, Turn
from runnel.core.state import Settings
from runnel.llm.worlds.sokoban_levels import MOVES, SIGNS, Level, Place, drawn, made_backwards, pushed, read, solution
from runnel.llm.worlds.world import World, entry, last_word, share, splits, whole

BOXES = "boxes"


class Sokoban(World):
    """Push the boxes onto the goals. Reward 1 when all are there; after `max_turns` the game is cut off.

    Levels are `size` cells high and wide with their outer walls, and have `boxes` boxes. A move is the last of the words up,
    down, left and right in the message. With `per_box`, the channel `boxes` pays, with this weight, 1 for a box that comes onto
    a goal, and -1 for one that leaves it. The key of a turn is the grid.
    """

    name = "sokoban"

    def __init__(
        self,
        *,
        size: int = 6,
        boxes: int = 1,
        per_box: float = 0.0,
        max_turns: int = 40,
        num_train: int = 10_000,
        num_eval: int = 256,
    ) -> None:
        super().__init__()
        self._size = whole("sokoban.size", size, 5, 8)
        self._boxes = whole("sokoban.boxes", boxes, 1, 2)
        self._per_box = share("sokoban.per_box", per_box, 0, 100)
        self._max_turns = whole("sokoban.max_turns", max_turns, 1, 10_000)
        self._sizes = whole("sokoban.num_train", num_train, 1, 10**9), whole("sokoban.num_eval", num_eval, 1, 10**9)
        self.rewards = {REWARD: 1.0, **({BOXES: self._per_box} if self._per_box else {})}

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        return splits(self, *self._sizes)

    def draw(self, rng: np.random.Generator) -> Settings:
        level = None
        while level is None:
            level = made_backwards(rng, self._size, self._boxes)
        return {"grid": drawn(level, level.start)}

    def begin(self, task: Settings) -> Turn:
        level = read(tuple(entry(task, "grid", list, self.name)))
        self._go(level.start)
        rules = "Push every box onto a goal. You push a box by walking against it; you cannot pull."
        return self._turn(f"{rules} {SIGNS} Reply with one word: {', '.join(MOVES)}.\n")

    def answer(self, text: str) -> Turn:
        level, place = self._level(), self._place()
        move, last = last_word(text, tuple(MOVES)), self.now["turns"] >= self._max_turns
        after = pushed(level, place, move) if move else None
        if after is None:
            words = "That way is blocked.\n" if move else "I see no move in your message.\n"
            return replace(self._turn(words), truncated=last)
        self._go(after)
        solved = after.boxes == level.goals
        rewards = {REWARD: float(solved)}
        if self._per_box:
            rewards[BOXES] = float(len(after.boxes & level.goals) - len(place.boxes & level.goals))
        return replace(
            self._turn("Solved.\n" if solved else ""), rewards=rewards, terminated=solved, truncated=last and not solved
        )

    def script(self) -> str:
        """The next move of a shortest solution; where there is none any more, some move."""
        way = solution(self._level(), self._place())
        return way[0] if way else "up"

    def _level(self) -> Level:
        return read(tuple(self.now["task"]["grid"]))

    def _place(self) -> Place:
        row, column = self.now["player"]
        return Place((row, column), frozenset((r, c) for r, c in self.now["boxes"]))

    def _go(self, place: Place) -> None:
        self.now |= {"player": list(place.player), "boxes": sorted(list(b) for b in place.boxes)}

    def _turn(self, words: str) -> Turn:
        grid = "\n".join(drawn(self._level(), self._place()))
        return Turn(words + grid, key=grid)
