"""What agents see: a cone of 135 degrees in front of them, as far as no wall and no thing stands in between; and lidar.

Rays against rectangles are the largest arrays of a world (in the arena 282 rays times 24 rectangles), so they are taken a few
rectangles at a time, and only the least distance stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from runnel.envs.device.hide_and_seek.geometry import Rects, crossing, crossing_upright

HALF_CONE = math.radians(67.5)
RANGE = 5.0
"""How far lidar reaches."""
CHUNK = 4
"""Rectangles that are looked at together."""


def in_cone(x: Tensor, y: Tensor, yaw: Tensor, to_x: Tensor, to_y: Tensor) -> Tensor:
    """Which targets `[K, E]` lie in front of which agents `[A, E]`. `[A, K, E]`"""
    dx, dy = to_x - x.unsqueeze(1), to_y - y.unsqueeze(1)
    ahead = dx * yaw.cos().unsqueeze(1) + dy * yaw.sin().unsqueeze(1)
    return ahead >= math.cos(HALF_CONE) * (dx.square() + dy.square()).sqrt()


def free_line(x: Tensor, y: Tensor, to_x: Tensor, to_y: Tensor, things: Rects, walls: Rects, itself: Tensor) -> Tensor:
    """Whether nothing stands between agents `[A, E]` and targets `[K, E]`; `itself` `[K, N, 1]` (bool) are the things that a
    target is. `[A, K, E]`"""
    ox, oy = x[:, None, None], y[:, None, None]
    dx, dy = to_x.unsqueeze(1) - ox, to_y.unsqueeze(1) - oy
    free = torch.ones_like(dx[:, :, 0], dtype=torch.bool)
    for first, enter, leave in _crossings(ox, oy, dx, dy, things, walls):
        hit = (enter < leave) & (enter < 1.0) & (leave > 0.0)
        if first is not None:
            hit = hit & ~itself[:, first : first + hit.shape[2]]
        free = free & ~hit.any(2)
    return free


def lidar(x: Tensor, y: Tensor, yaw: Tensor, high: Tensor, things: Rects, walls: Rects, num: int) -> Tensor:
    """How far it is to the next wall or thing in `num` directions, from straight ahead to the left and round, as a share of
    `RANGE`. Who stands above looks over everything. `[A, num, E]`"""
    turns = torch.arange(num, device=x.device, dtype=x.dtype) * (2.0 * math.pi / num)
    angle = (yaw.unsqueeze(1) + turns.unsqueeze(1)).unsqueeze(2)
    ox, oy = x[:, None, None], y[:, None, None]
    nearest = torch.full_like(angle.squeeze(2), RANGE)
    for _, enter, leave in _crossings(ox, oy, angle.cos(), angle.sin(), things, walls):
        enter = torch.where((enter < leave) & (leave > 0.0), enter, RANGE)
        nearest = torch.minimum(nearest, enter.amin(2))
    return torch.where(high.unsqueeze(1), 1.0, nearest.clamp(min=0.0) / RANGE)


def _crossings(
    ox: Tensor, oy: Tensor, dx: Tensor, dy: Tensor, things: Rects, walls: Rects
) -> Iterator[tuple[int | None, Tensor, Tensor]]:
    """Where rays enter and leave some things (with the number of the first) or some walls at a time."""
    for begin in range(0, len(things.x), CHUNK):
        yield begin, *crossing(ox, oy, dx, dy, things.some(begin, begin + CHUNK))
    for begin in range(0, len(walls.x), CHUNK):
        yield None, *crossing_upright(ox, oy, dx, dy, walls.some(begin, begin + CHUNK))
