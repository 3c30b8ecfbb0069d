"""FrozenLake in words: the transitions of Gymnasium's FrozenLake-v1, each move a word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from runnel.core.contracts.chat import Turn
from runnel.core.errors import ConfigError, DataError
from runnel.core.rng import make_rng
from runnel.core.state import Settings
from runnel.llm.worlds.world import World, entry, entry_between, last_word, share, splits, switch, whole

MOVES = ("left", "down", "right", "up")
"""In Gymnasium's order: a slip goes to the neighbour of a move in it."""
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))
MAPS = {
    "4x4": ("SFFF", "FHFH", "FFFH", "HFFG"),
    "8x8": ("SFFFFFFF", "FFFFFFFF", "FFFHFFFF", "FFFFFHFF", "FFFHFFFF", "FHHFFFHF", "FHFFHFHF", "FFFHFFFG"),
}
WORDS = {"S": "ice", "F": "ice", "H": "a hole", "G": "the goal"}
GAMMA = 0.99
EPISODES = 2**31
Outcome = tuple[float, int, float, bool]
"""Probability, next state, reward, and whether it ends."""
Table = tuple[tuple[tuple[Outcome, ...], ...], ...]
"""By state and move, what may follow."""


class FrozenLake(World):
    """Walk over the ice to the goal; a hole ends the walk. Reward 1 at the goal.

    The move is the last of the words left, down, right and up in the message; a message without one is a turn without a move.
    `map` is random (a map of `size` for each task, with a way to the goal, each tile ice with probability `frozen`), 4x4 or
    8x8 (Gymnasium's; the tasks then differ in their `episode` only, which decides what slips). On a slippery lake a move goes
    where it should, or to either side, with 1/3 each, as the task, the seed and the number of the turn decide. After
    `max_turns` the walk is cut off. The key of a turn is the state.
    """

    name = "frozenlake"

    def __init__(
        self,
        *,
        map: str = "random",
        size: int = 4,
        frozen: float = 0.8,
        slippery: bool = False,
        max_turns: int = 20,
        num_train: int = 10_000,
        num_eval: int = 256,
    ) -> None:
        super().__init__()
        if map not in ("random", *MAPS):
            raise ConfigError("frozenlake.map", map, f"choose one of random, {', '.join(MAPS)}")
        self._map = map
        self._size = whole("frozenlake.size", size, 3, 12)
        self._frozen = share("frozenlake.frozen", frozen, 0.5, 0.95)
        if map != "random" and (size, frozen) != (4, 0.8):
            raise ConfigError("frozenlake.map", map, "is a map of its own; size and frozen are of random maps")
        self._slippery = switch("frozenlake.slippery", slippery)
        self._max_turns = whole("frozenlake.max_turns", max_turns, 1, 10_000)
        self._sizes = whole("frozenlake.num_train", num_train, 1, 10**9), whole("frozenlake.num_eval", num_eval, 1, 10**9)

    def tasks(self) -> tuple[Sequence[Settings], Sequence[Settings]]:
        return splits(self, *self._sizes)

    def draw(self, rng: np.random.Generator) -> Settings:
        if self._map == "random":
            return {"map": random_map(rng, self._size, self._frozen)}
        return {"map": list(MAPS[self._map]), "episode": int(rng.integers(EPISODES))}

    def begin(self, task: Settings) -> Turn:
        rows = _checked(entry(task, "map", list, self.name))
        self.now["episode"] = entry_between({"episode": 0, **task}, "episode", 0, EPISODES - 1, self.name)
        self.now["state"] = "".join(rows).index("S")
        slips = " The ice is slippery: a move may go to its side." if self._slippery else ""
        rules = "Walk from S to G. F is ice, H is a hole that ends the walk." + slips
        grid = "\n".join(rows)
        how = "Reply with one word: left, down, right or up."
        return Turn(f"{rules}\n{grid}\n{how}\n{self._where()}", key=str(self.now["state"]))

    def answer(self, text: str) -> Turn:
        move, last = last_word(text, MOVES), self.now["turns"] >= self._max_turns
        if move is None:
            return Turn(f"I see no move in your message. {self._where()}", key=str(self.now["state"]), truncated=last)
        outcomes = self._table()[self.now["state"]][MOVES.index(move)]
        # a stream for each turn, so that no generator has to be saved
        rng = make_rng(self.now["seed"], self.name, self.now["episode"], self.now["turns"])
        drawn = rng.integers(len(outcomes))
        _, self.now["state"], reward, ended = outcomes[int(drawn)]
        words = self._where() if not ended else "You are at the goal." if reward else "You fell into a hole."
        return Turn(words, reward, terminated=ended, truncated=last and not ended, key=str(self.now["state"]))

    def script(self) -> str:
        """The best move by value iteration: on a lake that is not slippery, a shortest way."""
        return MOVES[best_moves(tuple(self.now["task"]["map"]), self._slippery)[self.now["state"]]]

    def _table(self) -> Table:
        return transitions(tuple(self.now["task"]["map"]), self._slippery)

    def _where(self) -> str:
        """The place, and what is around it."""
        rows, width = self.now["task"]["map"], len(self.now["task"]["map"][0])
        row, column = divmod(self.now["state"], width)
        around = []
        for move, (down, right) in zip(MOVES, STEPS, strict=True):
            inside = 0 <= row + down < len(rows) and 0 <= column + right < width
            around.append(f"{move} {WORDS[rows[row + down][column + right]] if inside else 'the edge'}")
        return f"You are in row {row + 1}, column {column + 1}. Around you: {', '.join(around)}."


def _checked(rows: list[str]) -> list[str]:
    """The rows of a map, which is a rectangle of known letters with one start."""
    if not all(isinstance(r, str) and len(r) == len(rows[0]) and not set(r) - set(WORDS) for r in rows) or not rows:
        raise DataError(f"world 'frozenlake': the map {rows!r} needs rows of equal length, of the letters S, F, H and G")
    if "".join(rows).count("S") != 1:
        raise DataError(f"world 'frozenlake': the map {rows!r} needs one S")
    return rows


@lru_cache(maxsize=256)
def transitions(rows: tuple[str, ...], slippery: bool) -> Table:
    """What each move may lead to: Gymnasium's `P`. A hole and the goal are left by no move."""
    height, width = len(rows), len(rows[0])

    def moved(state: int, move: int, probability: float) -> Outcome:
        row, column = divmod(state, width)
        down, right = STEPS[move]
        row, column = min(max(row + down, 0), height - 1), min(max(column + right, 0), width - 1)
        letter = rows[row][column]
        return probability, row * width + column, float(letter == "G"), letter in "GH"

    def outcomes(state: int, move: int) -> tuple[Outcome, ...]:
        if rows[state // width][state % width] in "GH":
            return ((1.0, state, 0.0, True),)
        if not slippery:
            return (moved(state, move, 1.0),)
        return tuple(moved(state, (move + side) % 4, 1 / 3) for side in (-1, 0, 1))

    return tuple(tuple(outcomes(s, m) for m in range(4)) for s in range(height * width))


@lru_cache(maxsize=256)
def best_moves(rows: tuple[str, ...], slippery: bool) -> tuple[int, ...]:
    """The best move of each state, by value iteration with the discount 0.99."""
    table = transitions(rows, slippery)
    chances = np.array([[sum(p * r for p, _, r, _ in o) for o in moves] for moves in table])
    follow = np.zeros((len(table), 4, len(table)))
    for state, moves in enumerate(table):
        for move, outcomes in enumerate(moves):
            for probability, after, _, ended in outcomes:
                follow[state, move, after] += 0.0 if ended else probability
    values, change = np.zeros(len(table)), 1.0
    while change > 1e-12:
        scores = chances + GAMMA * follow @ values
        change = float(np.abs(scores.max(axis=1) - values).max())
        values = scores.max(axis=1)
    return tuple(int(m) for m in scores.argmax(axis=1))


def random_map(rng: np.random.Generator, size: int, frozen: float) -> list[str]:
    """A map with the start and the goal in opposite corners and a way between them."""
    while True:
        tiles = np.where(rng.random((size, size)) < frozen, "F", "H")
        tiles[0, 0], tiles[-1, -1] = "S", "G"
        rows = ["".join(row) for row in tiles]
        if has_way(rows):
            return rows


def has_way(rows: Sequence[str]) -> bool:
    """Whether the goal can be reached from the start without a slip."""
    width = len(rows[0])
    table, seen = transitions(tuple(rows), False), {"".join(rows).index("S")}
    waiting = list(seen)
    while waiting:
        for ((_, after, _, ended),) in table[waiting.pop()]:
            if rows[after // width][after % width] == "G":
                return True
            if after not in seen and not ended:
                seen.add(after)
                waiting.append(after)
    return False
