"""Cells of the grid, and first states: a room in a corner with doors, who is in it, and who is outside.

Cells are numbered row after row, with a rim of one cell around the 12 x 12 on which the game is played: so a step in any
direction is one addition, and nothing has to ask whether a cell is on the board.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runnel.core.errors import ConfigError
from runnel.core.records import Batch

SIZE = 12
WIDTH = SIZE + 2
"""Cells of a row, with the rim."""
CELLS = WIDTH * WIDTH
FREE, WALL, RIM = 0, 1, 2
"""What the ground of a cell is. Who is high enough can stand on a wall; nobody can on the rim."""
NOWHERE = 0
"""The cell of a door that is not there: a corner of the rim, where nothing ever is."""
STEPS = (-WIDTH, WIDTH, -1, 1)
"""Up, down, left, right."""
SMALLEST, LARGEST = 3, 5
"""Cells along the sides of the room, inside of its walls."""
HIDERS, SEEKERS = 1, 2
"""The teams, as owners of locks; 0 is nobody."""

# each cell of the 12 x 12 has a bit, in three words, so that a line of sight is held against all walls by three ANDs
WORDS, _BITS = 3, 48
_INNER = np.array([(r + 1) * WIDTH + c + 1 for r in range(SIZE) for c in range(SIZE)])


def bits() -> np.ndarray:
    """The bit of each cell in each word; cells of the rim have none. `[WORDS, CELLS]`"""
    found = np.zeros((WORDS, CELLS), np.int64)
    for number, cell in enumerate(_INNER.tolist()):
        found[number // _BITS, cell] = 1 << (number % _BITS)
    return found


@dataclass(frozen=True)
class GridSizes:
    """How many there are of everything, and how long an episode is."""

    hiders: int = 2
    seekers: int = 2
    blocks: int = 2
    steps: int = 60
    preparation: float = 0.4
    two_doors: float = 0.25

    def __post_init__(self) -> None:
        for field, least in (("hiders", 1), ("seekers", 1), ("blocks", 1), ("steps", 1)):
            value = getattr(self, field)
            if value < least:
                raise ConfigError(f"env_kwargs.{field}", value, f"use at least {least}")
        if self.hiders + self.blocks > SMALLEST**2:
            fix = f"the smallest room has {SMALLEST**2} cells, for hiders and blocks; use fewer"
            raise ConfigError("env_kwargs.blocks", self.blocks, fix)
        if self.seekers > 2 * SIZE:
            raise ConfigError("env_kwargs.seekers", self.seekers, f"use at most {2 * SIZE}")
        for field, most in (("preparation", 1.0), ("two_doors", 1.0)):
            value = getattr(self, field)
            if not 0.0 <= value <= most:
                raise ConfigError(f"env_kwargs.{field}", value, "it is a share, from 0 to 1")

    @property
    def agents(self) -> int:
        """Hiders and seekers."""
        return self.hiders + self.seekers

    @property
    def things(self) -> int:
        """What can be held and locked: the blocks, and the ladder, which is the last one."""
        return self.blocks + 1

    @property
    def prep_steps(self) -> int:
        """Steps in which seekers do not move and nobody is paid."""
        return round(self.preparation * self.steps)

    @property
    def teams(self) -> list[int]:
        """The team of each agent."""
        return [HIDERS] * self.hiders + [SEEKERS] * self.seekers


def draw(sizes: GridSizes, num: int, generator: torch.Generator) -> Batch:
    """`num` first states: a room of 3 to 5 cells a side in one of the corners, with a door in one of its two walls or in both,
    hiders and blocks in it, seekers and the ladder outside."""
    device = generator.device
    ground, inside, doors, room = _rooms(num, sizes.two_doors, generator)
    rank = torch.rand(num, CELLS, generator=generator, device=device)
    closed = torch.zeros(num, CELLS, dtype=torch.bool, device=device).scatter_(1, doors, True) | (ground != FREE)
    within = rank.masked_fill(~inside | closed, -1.0).topk(sizes.hiders + sizes.blocks).indices
    outside = rank.masked_fill(inside | closed, -1.0).topk(sizes.seekers + 1).indices
    things = torch.cat((within[:, sizes.hiders :], outside[:, -1:]), 1)
    agents = torch.cat((within[:, : sizes.hiders], outside[:, :-1]), 1)
    facing = torch.randint(4, agents.shape, generator=generator, device=device)
    nobody = torch.zeros_like(agents)
    return Batch(
        ground=ground,
        words=_words(ground),
        doors=doors,
        room=room,
        agents=agents,
        facing=facing,
        up=nobody.bool(),
        holds=nobody,
        things=things,
        locks=torch.zeros_like(things),
        came_from=things.clone(),
        time=torch.zeros(num, dtype=torch.int64, device=device),
    )


def _rooms(num: int, two_doors: float, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ground `[num, CELLS]`, what is inside of the room `[num, CELLS]`, doors `[num, 2]`, and the room's sides `[num, 4]`:
    whether it is below, whether it is on the right, and the numbers of the row and the column of its walls."""
    device = generator.device
    sides = torch.randint(SMALLEST, LARGEST + 1, (2, num, 1), generator=generator, device=device)
    flips = torch.randint(2, (2, num, 1), generator=generator, device=device)
    u = torch.rand(4, num, 1, generator=generator, device=device)
    cell = torch.arange(CELLS, device=device)
    places = torch.stack((cell // WIDTH - 1, cell % WIDTH - 1)).unsqueeze(1)
    rim = ((places < 0) | (places >= SIZE)).any(0)
    # seen from the corner of the room: how many rows and columns away a cell is
    away = torch.where(flips == 1, SIZE - 1 - places, places)
    inside = (away < sides).all(0) & ~rim
    ground = ((away == sides).any(0) & (away <= sides).all(0) & ~rim).to(torch.int8) * WALL
    along = (u[:2] * sides.flip(0)).long().minimum(sides.flip(0) - 1)
    first, second = torch.stack((sides[0], along[0])), torch.stack((along[1], sides[1]))
    alone, which = u[2] >= two_doors, u[3] < 0.5
    doors = torch.cat(
        [
            torch.where(there, _cell(torch.where(flips == 1, SIZE - 1 - place, place)), NOWHERE)
            for place, there in ((first, ~alone | which), (second, ~alone | ~which))
        ],
        1,
    )
    ground.scatter_(1, doors, FREE)
    ground.masked_fill_(rim, RIM)
    walls = torch.where(flips == 1, SIZE - 1 - sides, sides)
    return ground, inside, doors, torch.cat((*flips, *walls), 1)


def _cell(place: Tensor) -> Tensor:
    """The number of the cell in row `place[0]` and column `place[1]`."""
    return (place[0] + 1) * WIDTH + place[1] + 1


def _words(ground: Tensor) -> Tensor:
    """Where walls are, as bits. `[num, WORDS]`"""
    return ((ground == WALL).long().unsqueeze(1) * _bits_on(ground.device)).sum(2)


@functools.cache
def _bits_on(device: torch.device) -> Tensor:
    """`bits` on a device: made at the first call, because a CUDA graph cannot record a constant that comes from the host."""
    return torch.from_numpy(bits()).to(device)
