"""How agents and things move in hide-and-seek: one step of 0.1 s in four parts, in the plane.

Agents are discs with a velocity. Things (boxes, ramps) are rectangles with so much friction that they stop at once: they move
only where they are pushed, or with the agent that holds them. In each part of length h

    v <- (v + h a)(1 - h c), cut at the greatest speed;   x <- x + h v        (semi-implicit Euler with damping; turning alike)

then what lies in each other is pushed apart by its depth, shared out by the inverse masses (a corner also turns a thing):

    lambda = depth / (w_a + w_b + (p x n)^2 / I),   x <- x + lambda w_a n,   turn <- turn + lambda (p x n) / I

Walls and locked things have w = 0, a held thing moves with its holder as one body that does not give way by turning. Of a
thing's touches with walls the deepest counts, and of those with other things. At last, a thing that is still deeper than
`TOLERANCE` in a wall goes back to where it was before this part, with its holder. So nothing ever comes through a wall. What
an agent was pushed back by takes away the part of its velocity that leads into it, and nothing gives it any: without forces no
agent gets faster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from runnel.envs.device.hide_and_seek.geometry import TINY, Rects, distance_and_normal, overlap, touch
from runnel.envs.device.hide_and_seek.layouts import AGENT

STEP, PARTS = 0.1, 4
FORCE, TORQUE = 10.0, 15.0
"""The greatest acceleration along each own axis, and of turning."""
DAMPING, MAX_SPEED, MAX_SPIN = 5.0, 3.0, 3.0
MASS_OF_HOLDER = 2.0
"""Of an agent with what it holds; all bodies weigh 1."""
MAX_PUSH, MAX_TURN = 0.1, 0.1
"""How far bodies push each other in one part at most."""
TOLERANCE = 0.02
_H = STEP / PARTS


@dataclass(frozen=True)
class Bodies:
    """What moves: agents `[A, E]`, things `[N, E]`, who holds what `[A, N, E]` and where from it."""

    x: Tensor
    y: Tensor
    vx: Tensor
    vy: Tensor
    yaw: Tensor
    spin: Tensor
    things: Rects
    turn: Tensor
    holds: Tensor
    offset: Tensor
    """`[A, 3, E]`: place and turn of what is held, in the holder's own axes."""


@dataclass(frozen=True)
class Fixed:
    """What stays as it is during a step."""

    walls: Rects
    inertia: Tensor
    """Of things `[N, E]`."""
    loose: Tensor
    """Things that give way when pushed `[N, E]`."""
    held: Tensor
    low: Tensor
    """Agents on the floor `[A, E]`: others stand above walls and things."""
    level: Tensor
    """Pairs of agents that can touch `[A, A, E]`."""
    others: Tensor
    """`[N, N, 1]`, bool: no thing pushes itself."""
    holding: Tensor
    """`[A, E]`, bool."""


def move(b: Bodies, fixed: Fixed, ax: Tensor, ay: Tensor, turning: Tensor) -> Bodies:
    """A step under accelerations `[A, E]` of agents."""
    for _ in range(PARTS):
        b = _part(b, fixed, ax, ay, turning)
    return b


def _part(old: Bodies, fixed: Fixed, ax: Tensor, ay: Tensor, turning: Tensor) -> Bodies:
    b = _glide(old, ax, ay, turning)
    free_x, free_y = b.x, b.y
    b = _apart(b, fixed)
    b = _back(b, old, fixed)
    return _slowed(b, b.x - free_x, b.y - free_y)


def _glide(b: Bodies, ax: Tensor, ay: Tensor, turning: Tensor) -> Bodies:
    """The way of the agents where nothing stops them."""
    keep = 1.0 - DAMPING * _H
    vx, vy = (b.vx + ax * _H) * keep, (b.vy + ay * _H) * keep
    cut = (MAX_SPEED / (vx.square() + vy.square()).sqrt().clamp(min=TINY)).clamp(max=1.0)
    spin = ((b.spin + turning * _H) * keep).clamp(-MAX_SPIN, MAX_SPIN)
    vx, vy = vx * cut, vy * cut
    moved = replace(b, x=b.x + vx * _H, y=b.y + vy * _H, vx=vx, vy=vy, yaw=b.yaw + spin * _H, spin=spin)
    return carried(moved)


def carried(b: Bodies) -> Bodies:
    """Held things where their holders have them."""
    cos, sin = b.yaw.cos(), b.yaw.sin()
    ox, oy, turned = b.offset.unbind(1)
    x, y = b.x + ox * cos - oy * sin, b.y + ox * sin + oy * cos
    holds, is_held = b.holds.to(x.dtype), b.holds.any(0)

    def at(of_holder: Tensor, now: Tensor) -> Tensor:
        return torch.where(is_held, (of_holder.unsqueeze(1) * holds).sum(0), now)

    turn = at(b.yaw + turned, b.turn)
    things = b.things._replace(x=at(x, b.things.x), y=at(y, b.things.y), cos=turn.cos(), sin=turn.sin())
    return replace(b, things=things, turn=turn)


def _apart(b: Bodies, fixed: Fixed) -> Bodies:
    """Everything pushed out of everything, from where all of it is now."""
    agents_x, agents_y = _between_agents(b, fixed)
    from_x, from_y, pushed_x, pushed_y, turned = _agents_and_things(b, fixed)
    things_x, things_y, things_turned = _between_things(b, fixed)
    pushed_x, pushed_y, turned = pushed_x + things_x, pushed_y + things_y, turned + things_turned
    holds = b.holds.to(b.x.dtype)
    # what pushes a held thing pushes its holder
    back_x, back_y = ((p * holds).sum(1) for p in (pushed_x, pushed_y))
    dx, dy = _cut(agents_x + from_x + back_x, agents_y + from_y + back_y)
    tx, ty = _cut(pushed_x, pushed_y)
    loose = fixed.loose.to(b.x.dtype)
    turn = b.turn + turned.clamp(-MAX_TURN, MAX_TURN) * loose
    things = b.things._replace(x=b.things.x + tx * loose, y=b.things.y + ty * loose, cos=turn.cos(), sin=turn.sin())
    x, y = _out_of_walls(b.x + dx, b.y + dy, fixed)
    return carried(replace(b, x=x, y=y, things=things, turn=turn))


def _cut(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    scale = (MAX_PUSH / (x.square() + y.square()).sqrt().clamp(min=TINY)).clamp(max=1.0)
    return x * scale, y * scale


def _between_agents(b: Bodies, fixed: Fixed) -> tuple[Tensor, Tensor]:
    """Agents push each other away, half of the depth each."""
    dx, dy = b.x.unsqueeze(1) - b.x, b.y.unsqueeze(1) - b.y
    far = (dx.square() + dy.square()).sqrt().clamp(min=TINY)
    push = (2 * AGENT - far).clamp(min=0) * fixed.level * 0.5 / far
    return (dx * push).sum(1), (dy * push).sum(1)


def _agents_and_things(b: Bodies, fixed: Fixed) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Pushes on agents, on things, and turns of things."""
    r, x, y = b.things, b.x.unsqueeze(1), b.y.unsqueeze(1)
    far, nx, ny = distance_and_normal(x, y, r)
    depth = (AGENT - far).clamp(min=0) * (fixed.low.unsqueeze(1) & ~b.holds)
    # from the middle of the thing to where the agent touches it
    px, py = x - nx * far - r.x, y - ny * far - r.y
    arm = px * ny - py * nx
    mine = torch.where(fixed.holding, 1.0 / MASS_OF_HOLDER, 1.0).to(far.dtype).unsqueeze(1)
    theirs = _weight(fixed, far.dtype)
    size = depth / (mine + theirs + arm.square() / fixed.inertia * fixed.loose)
    away = size * mine
    push = size * theirs
    return (
        (away * nx).sum(1),
        (away * ny).sum(1),
        -(push * nx).sum(0),
        -(push * ny).sum(0),
        -(size * arm / fixed.inertia).sum(0),
    )


def _weight(fixed: Fixed, dtype: torch.dtype) -> Tensor:
    """Inverse masses of things `[N, E]`: 1 loose, a half with a holder, 0 locked."""
    return torch.where(fixed.loose, 1.0, torch.where(fixed.held, 1.0 / MASS_OF_HOLDER, 0.0)).to(dtype)


def _between_things(b: Bodies, fixed: Fixed) -> tuple[Tensor, Tensor, Tensor]:
    """Pushes on things by other things and by walls, and their turns."""
    first, second, num = b.things.at(1), b.things.then(fixed.walls), len(b.turn)
    t = touch(first, second)
    weight = _weight(fixed, t.depth.dtype)
    arm = t.px * t.ny - t.py * t.nx
    mine = weight.unsqueeze(1) + arm.square() * (fixed.loose / fixed.inertia).unsqueeze(1)
    # the same point from the middle of the other thing; a wall gives way in no manner
    qx, qy = t.px[:, :num] + first.x - b.things.x, t.py[:, :num] + first.y - b.things.y
    other = qx * t.ny[:, :num] - qy * t.nx[:, :num]
    other = weight + other.square() * (fixed.loose / fixed.inertia)
    theirs = torch.cat([other, torch.zeros_like(t.depth[:, num:])], 1)
    depth = t.depth.clamp(min=0)
    deep_things, deep_walls = depth[:, :num] * fixed.others, depth[:, num:]
    deepest = torch.cat([deep_things * _greatest(deep_things), deep_walls * _greatest(deep_walls)], 1)
    # what has no weight is not moved, so no size counts there
    size = torch.where(mine > 0, deepest / (mine + theirs).clamp(min=TINY), 0.0)
    push = size * weight.unsqueeze(1)
    return (push * t.nx).sum(1), (push * t.ny).sum(1), (size * arm).sum(1) / fixed.inertia


def _greatest(x: Tensor) -> Tensor:
    """Whether it is the first of the greatest numbers in the second dimension."""
    top = x == x.amax(1, keepdim=True)
    return top & (top.cumsum(1) == 1)


def _out_of_walls(x: Tensor, y: Tensor, fixed: Fixed) -> tuple[Tensor, Tensor]:
    """Agents on the floor beside the walls. Walls run along the axes, so the farthest push along each axis is enough."""
    far, nx, ny = distance_and_normal(x.unsqueeze(1), y.unsqueeze(1), fixed.walls)
    depth = (AGENT - far).clamp(min=0) * fixed.low.unsqueeze(1)
    px, py = depth * nx, depth * ny
    return (
        x + px.amax(1).clamp(min=0) + px.amin(1).clamp(max=0),
        y + py.amax(1).clamp(min=0) + py.amin(1).clamp(max=0),
    )


def _back(b: Bodies, old: Bodies, fixed: Fixed) -> Bodies:
    """Things that are in a wall go back to where they were, with their holders."""
    stuck = (overlap(b.things.at(1), fixed.walls) > TOLERANCE).any(1)
    agent = (b.holds & stuck).any(1)

    def kept(was: Tensor, now: Tensor, back: Tensor) -> Tensor:
        return torch.where(back, was, now)

    things = b.things._replace(
        x=kept(old.things.x, b.things.x, stuck),
        y=kept(old.things.y, b.things.y, stuck),
        cos=kept(old.things.cos, b.things.cos, stuck),
        sin=kept(old.things.sin, b.things.sin, stuck),
    )
    none = torch.zeros_like(b.vx)
    return replace(
        b,
        x=kept(old.x, b.x, agent),
        y=kept(old.y, b.y, agent),
        yaw=kept(old.yaw, b.yaw, agent),
        vx=kept(none, b.vx, agent),
        vy=kept(none, b.vy, agent),
        spin=kept(none, b.spin, agent),
        things=things,
        turn=kept(old.turn, b.turn, stuck),
    )


def _slowed(b: Bodies, pushed_x: Tensor, pushed_y: Tensor) -> Bodies:
    """Without the part of the velocities that leads into what pushed agents back."""
    far = (pushed_x.square() + pushed_y.square()).sqrt().clamp(min=TINY)
    nx, ny = pushed_x / far, pushed_y / far
    into = (b.vx * nx + b.vy * ny).clamp(max=0)
    return replace(b, vx=b.vx - into * nx, vy=b.vy - into * ny)
