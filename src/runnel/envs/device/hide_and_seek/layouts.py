"""First states of hide-and-seek: a table of rooms with everything in its place, drawn once, mirrored when it is used.

Drawing a place takes tries, and tries have no fixed number. So they are made here, in numpy, before the first episode; a world
that begins takes a row of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from runnel.core.errors import ConfigError
from runnel.core.rng import make_rng
from runnel.core.state import Array

WALL = 0.05
"""Half of the thickness of a wall."""
DOOR, POST = 0.8, 0.3
"""The width of a door, and what stays of a wall beside it at least."""
AGENT = 0.2
BOX, LONG_BOX, RAMP = (0.25, 0.25), (0.75, 0.125), (0.4, 0.3)
"""Half of the sides. A ramp rises along its x."""
FAR = 1000.0
"""Where stands what is not there in an episode."""
_TRIES = 48
_GAP = 0.05


@dataclass(frozen=True)
class Size:
    """What there is at most, and how long an episode lasts."""

    side: float
    hiders: int
    seekers: int
    boxes: int
    ramps: int
    walls: int
    steps: int
    lock_ramps: bool
    varies: bool
    """Whether episodes have fewer hiders, seekers and boxes, and long boxes."""

    @property
    def agents(self) -> int:
        return self.hiders + self.seekers

    @property
    def things(self) -> int:
        return self.boxes + self.ramps


SIZES = {
    "quadrant": Size(6.0, 2, 2, 2, 1, walls=8, steps=80, lock_ramps=False, varies=False),
    "arena": Size(12.0, 3, 3, 9, 2, walls=13, steps=160, lock_ramps=True, varies=True),
}


def size_of(name: str) -> Size:
    """The size of that name."""
    if name not in SIZES:
        raise ConfigError("env_kwargs.size", name, f"there are {', '.join(SIZES)}")
    return SIZES[name]


@lru_cache(maxsize=8)
def layout_table(name: str, num: int) -> dict[str, Array]:
    """`num` rooms: `walls` `[L, W, 4]` (middle, half of the sides), `thing` `[L, N, 5]` (place, turn, half of the sides),
    `there` `[L, N]`, `agent` `[L, A, 2]`, `here` `[L, A]`. The same for everybody."""
    size, found = size_of(name), []
    rng, missing = make_rng(0, "hide_and_seek", name), num
    while missing > 0:
        drawn, fits = _draw(name, size, missing + missing // 2 + 8, rng)
        found.append({key: x[fits][:missing] for key, x in drawn.items()})
        missing -= len(found[-1]["walls"])
    return {key: np.concatenate([part[key] for part in found]) for key in found[0]}


def _draw(name: str, size: Size, num: int, rng: Any) -> tuple[dict[str, Array], Array]:
    rooms = [_quadrant(rng) if name == "quadrant" else _arena(rng) for _ in range(num)]
    walls = np.full((num, size.walls, 4), FAR)
    walls[..., 2:] = 0.0
    for row, (pieces, _) in zip(walls, rooms, strict=True):
        row[: len(pieces)] = pieces
    half, there, here = _counts(size, num, rng)
    radius = np.concatenate([np.hypot(half[..., 0], half[..., 1]), np.full((num, size.agents), AGENT)], 1)
    inside = [None] * num if size.varies else [corner for _, corner in rooms]
    where = _zones(size)
    place, fits = _places(size, walls, radius, np.concatenate([there, here], 1), inside, where, rng)
    turn = rng.uniform(-np.pi, np.pi, (num, size.things, 1))
    thing = np.concatenate([place[:, : size.things], turn, half], 2)
    made = {"walls": walls, "thing": thing, "agent": place[:, size.things :]}
    return {k: x.astype(np.float32) for k, x in made.items()} | {"there": there, "here": here}, fits


def _counts(size: Size, num: int, rng: Any) -> tuple[Array, Array, Array]:
    """Half of the sides of each thing, which things are there, and which agents."""
    half = np.empty((num, size.things, 2))
    half[:, : size.boxes], half[:, size.boxes :] = BOX, RAMP
    there, here = np.ones((num, size.things), bool), np.ones((num, size.agents), bool)
    if size.varies:
        count = rng.integers(3, size.boxes + 1, (num, 1))
        there[:, : size.boxes] = np.arange(size.boxes) < count
        half[:, : size.boxes][np.arange(size.boxes) < rng.integers(1, 4, (num, 1))] = LONG_BOX
        here[:, : size.hiders] = np.arange(size.hiders) < rng.integers(1, size.hiders + 1, (num, 1))
        here[:, size.hiders :] = np.arange(size.seekers) < rng.integers(1, size.seekers + 1, (num, 1))
    return half, there, here


def _zones(size: Size) -> list[str]:
    """Where each thing and agent begins: in the room, out of it, or anywhere."""
    if size.varies:
        return ["any"] * (size.things + size.agents)
    return ["room"] * size.boxes + ["out"] * size.ramps + ["any"] * size.hiders + ["out"] * size.seekers


def _places(
    size: Size, walls: Array, radius: Array, real: Array, inside: list[Any], zones: list[str], rng: Any
) -> tuple[Array, Array]:
    """A place for each, apart from walls and from all before it, and which rooms have one for all."""
    num, count = radius.shape
    place, fits, rows = np.full((num, count, 2), FAR), np.ones(num, bool), np.arange(num)
    place += np.arange(count)[:, None] * 10.0
    for i in range(count):
        tries = rng.uniform(-size.side / 2, size.side / 2, (num, _TRIES, 2))
        apart = np.abs(tries[:, :, None] - walls[:, None, :, :2]) - walls[:, None, :, 2:]
        good = (np.hypot(*np.maximum(apart, 0.0).transpose(3, 0, 1, 2)) > radius[:, None, i, None] + _GAP).all(-1)
        apart = np.hypot(*(tries[:, :, None] - place[:, None, :i]).transpose(3, 0, 1, 2))
        good &= (apart > radius[:, None, i, None] + radius[:, None, :i] + _GAP).all(-1)
        if zones[i] != "any":
            corner = np.array(inside)[:, None]
            within = (tries[..., 0] > corner[..., 0]) & (tries[..., 1] < corner[..., 1])
            good &= within == (zones[i] == "room")
        fits &= good.any(1) | ~real[:, i]
        chosen = tries[rows, good.argmax(1)]
        place[real[:, i], i] = chosen[real[:, i]]
    return place, fits


def _quadrant(rng: Any) -> tuple[list[list[float]], tuple[float, float]]:
    """A room in the lower right corner, whose two walls have a door each; one of them is missing in half of all rooms."""
    x, y = rng.uniform(-0.5, 0.5, 2)
    doors = [1, 1]
    if rng.random() < 0.5:
        doors[rng.integers(2)] = 0
    pieces = _outer(3.0)
    pieces += _wall(rng, x, -3.0, y, doors[0], upright=True)
    pieces += _wall(rng, y, x, 3.0, doors[1], upright=False)
    return pieces, (x, y)


def _arena(rng: Any) -> tuple[list[list[float]], tuple[float, float]]:
    """Two halves, each of which may be divided again."""
    pieces, x = _outer(6.0), rng.uniform(-2.5, 2.5)
    if rng.random() < 0.9:
        middle = _wall(rng, x, -6.0, 6.0, int(rng.integers(1, 3)), upright=True)
        pieces += middle
        for begin, end in ((-6.0, x), (x, 6.0)):
            if rng.random() < 0.75:
                y = _beside_doors(rng, middle)
                pieces += _wall(rng, y, begin, end, int(rng.integers(1, 3)), upright=False)
    return pieces, (x, 0.0)


def _beside_doors(rng: Any, upright: list[list[float]]) -> float:
    """Where a wall may meet an upright one: not in its doors, where it would leave gaps in which agents stick."""
    while True:
        y = float(rng.uniform(-3.5, 3.5))
        if any(abs(y - piece[1]) < piece[3] - POST / 2 for piece in upright):
            return y


def _outer(half: float) -> list[list[float]]:
    at, long = half + WALL, half + 2 * WALL
    return [[-at, 0.0, WALL, long], [at, 0.0, WALL, long], [0.0, -at, long, WALL], [0.0, at, long, WALL]]


def _wall(rng: Any, at: float, begin: float, end: float, doors: int, *, upright: bool) -> list[list[float]]:
    """The pieces of a wall with doors, one in each part of equal length. Its ends reach into what it stands on."""
    edges, part = [begin - WALL], (end - begin) / max(doors, 1)
    for k in range(doors):
        first = rng.uniform(begin + k * part + POST, begin + (k + 1) * part - POST - DOOR)
        edges += [first, first + DOOR]
    edges.append(end + WALL)
    pieces = [[at, (a + b) / 2, WALL, (b - a) / 2] for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return pieces if upright else [[p[1], p[0], p[3], p[2]] for p in pieces]
