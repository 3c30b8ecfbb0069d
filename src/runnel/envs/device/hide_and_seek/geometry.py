"""Discs, turned rectangles and rays in the plane, for many worlds at once.

Every function works on coordinates of one shape after broadcasting: `[A, 1, E]` against `[1, N, E]` is every agent against
every thing. Worlds stand last, because there are many of them and few of everything else: an operation runs along memory.
There is no loop over worlds and nothing waits for the device.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TINY = 1e-9
NOUGHT = 1e-20
FLUSH = 0.1
"""Sides that meet at a smaller sine than this touch along an edge: the point of contact moves to the middle as they align."""
PREFER = 1e-4
"""Which of two parallel faces touches would else hang on rounding."""


class Rects(NamedTuple):
    """Rectangles: middle, direction of their own x axis, and half of their sides. Each `[...]`."""

    x: Tensor
    y: Tensor
    cos: Tensor
    sin: Tensor
    hx: Tensor
    hy: Tensor

    def at(self, dim: int) -> Rects:
        """The same with a further dimension."""
        return Rects(*(part.unsqueeze(dim) for part in self))

    def then(self, other: Rects) -> Rects:
        """These, followed by others, in the first dimension."""
        return Rects(*(torch.cat(pair) for pair in zip(self, other, strict=True)))

    def some(self, begin: int, end: int) -> Rects:
        """A part of them, by their place in the first dimension."""
        return Rects(*(part[begin:end] for part in self))


class Touch(NamedTuple):
    """How deep two bodies are in each other (below 0: apart), the direction from the second to the first, and the point where
    they touch, from the middle of the first."""

    depth: Tensor
    nx: Tensor
    ny: Tensor
    px: Tensor
    py: Tensor


def distance(px: Tensor, py: Tensor, r: Rects) -> Tensor:
    """From points to the sides of rectangles; below 0 inside."""
    a, b = _beside(px, py, r)[2:]
    return (a.clamp(min=0).square() + b.clamp(min=0).square()).sqrt() + torch.maximum(a, b).clamp(max=0)


def distance_and_normal(px: Tensor, py: Tensor, r: Rects) -> tuple[Tensor, Tensor, Tensor]:
    """`distance`, and the direction in which it grows."""
    u, v, a, b = _beside(px, py, r)
    out_a, out_b = a.clamp(min=0), b.clamp(min=0)
    out = (out_a.square() + out_b.square()).sqrt()
    outside, nearer = out > 0, a >= b
    nu = torch.where(outside, out_a / out.clamp(min=TINY), nearer.to(a.dtype)).copysign(u)
    nv = torch.where(outside, out_b / out.clamp(min=TINY), (~nearer).to(a.dtype)).copysign(v)
    return out + torch.maximum(a, b).clamp(max=0), nu * r.cos - nv * r.sin, nu * r.sin + nv * r.cos


def _beside(px: Tensor, py: Tensor, r: Rects) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Points in the rectangles' own axes, and how far they lie beyond their sides."""
    dx, dy = px - r.x, py - r.y
    u, v = dx * r.cos + dy * r.sin, dy * r.cos - dx * r.sin
    return u, v, u.abs() - r.hx, v.abs() - r.hy


def overlap(a: Rects, b: Rects) -> Tensor:
    """How deep rectangles are in each other: the least overlap along their four axes (separating axes); below 0 apart."""
    along_b, upright_b, along_a, upright_a = _overlaps(a, b)[0]
    return torch.minimum(torch.minimum(along_b, upright_b), torch.minimum(along_a, upright_a))


def _overlaps(a: Rects, b: Rects) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Overlap along the axes of b (x, y) and of a, and the offset of a from b along each."""
    dx, dy = a.x - b.x, a.y - b.y
    c, s = a.cos * b.cos + a.sin * b.sin, a.sin * b.cos - a.cos * b.sin
    ca, sa = c.abs(), s.abs()
    along = (
        dx * b.cos + dy * b.sin,
        dy * b.cos - dx * b.sin,
        dx * a.cos + dy * a.sin,
        dy * a.cos - dx * a.sin,
    )
    reach = (
        b.hx + a.hx * ca + a.hy * sa,
        b.hy + a.hx * sa + a.hy * ca,
        a.hx + b.hx * ca + b.hy * sa,
        a.hy + b.hx * sa + b.hy * ca,
    )
    return tuple(far - d.abs() for far, d in zip(reach, along, strict=True)), along


def touch(a: Rects, b: Rects) -> Touch:
    """How rectangles touch. The axis of least overlap is the normal, an axis of b where both are as good. On a face of b stands
    the corner of a that is deepest; on a face of a, the corner of b."""
    (ob0, ob1, oa0, oa1), (db0, db1, da0, da1) = _overlaps(a, b)
    first_b, first_a = ob0 <= ob1, oa0 <= oa1
    deep_b, deep_a = torch.minimum(ob0, ob1), torch.minimum(oa0, oa1)
    of_a = deep_a < deep_b - PREFER
    bx, by = torch.where(first_b, b.cos, -b.sin), torch.where(first_b, b.sin, b.cos)
    ax, ay = torch.where(first_a, a.cos, -a.sin), torch.where(first_a, a.sin, a.cos)
    away = torch.where(of_a, torch.where(first_a, da0, da1), torch.where(first_b, db0, db1))
    sign = torch.ones_like(away).copysign(away)
    nx, ny = torch.where(of_a, ax, bx) * sign, torch.where(of_a, ay, by) * sign
    mine_x, mine_y = _corner(a, -nx, -ny)
    other_x, other_y = _corner(b, nx, ny)
    px = torch.where(of_a, other_x + b.x - a.x, mine_x)
    py = torch.where(of_a, other_y + b.y - a.y, mine_y)
    return Touch(torch.where(of_a, deep_a, deep_b), nx, ny, px, py)


def _corner(r: Rects, nx: Tensor, ny: Tensor) -> tuple[Tensor, Tensor]:
    """What of a rectangle is farthest in a direction, from its middle: a corner, or near the middle of a side."""
    u = ((nx * r.cos + ny * r.sin) / FLUSH).clamp(-1.0, 1.0) * r.hx
    v = ((ny * r.cos - nx * r.sin) / FLUSH).clamp(-1.0, 1.0) * r.hy
    return u * r.cos - v * r.sin, u * r.sin + v * r.cos


def crossing(ox: Tensor, oy: Tensor, dx: Tensor, dy: Tensor, r: Rects) -> tuple[Tensor, Tensor]:
    """Where the rays `o + t d` enter and leave rectangles (slabs); they miss where the first is not below the second."""
    wx, wy = ox - r.x, oy - r.y
    u, v = wx * r.cos + wy * r.sin, wy * r.cos - wx * r.sin
    return _slabs(u, v, _inverse(dx * r.cos + dy * r.sin), _inverse(dy * r.cos - dx * r.sin), r)


def crossing_upright(ox: Tensor, oy: Tensor, dx: Tensor, dy: Tensor, r: Rects) -> tuple[Tensor, Tensor]:
    """The same of rectangles that are not turned: a third of the work."""
    return _slabs(ox - r.x, oy - r.y, _inverse(dx), _inverse(dy), r)


def _slabs(u: Tensor, v: Tensor, iu: Tensor, iv: Tensor, r: Rects) -> tuple[Tensor, Tensor]:
    mid_u, mid_v, half_u, half_v = -u * iu, -v * iv, r.hx * iu.abs(), r.hy * iv.abs()
    return torch.maximum(mid_u - half_u, mid_v - half_v), torch.minimum(mid_u + half_u, mid_v + half_v)


def _inverse(d: Tensor) -> Tensor:
    # what is added vanishes beside any number but 0
    return (d + NOUGHT).reciprocal()
