"""What agents do to things in hide-and-seek beside pushing them: lock, grab, climb."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runnel.envs.device.hide_and_seek.geometry import Rects, distance
from runnel.envs.device.hide_and_seek.layouts import AGENT

REACH = 0.4
"""From the rim of an agent to the side of a thing."""
NOBODY, HIDERS, SEEKERS = 0, 1, 2
"""Who has locked a thing."""
LOCK, UNLOCK = 1, 2
STANDS = 0.05
"""An agent above stands on what is nearer to its rim than this."""
CLIMB, CLIMB_GAP, LEAN = 3, 0.1, 0.3
"""Steps that it takes to walk up a ramp, how near its low side is then, and how near the ramp leans against something."""


class Reach(NamedTuple):
    """Which thing each agent could lock, and which it could grab: one or none. `[A, N, E]`, bool."""

    lock: Tensor
    grab: Tensor


def within_reach(far: Tensor, seen: Tensor, may_grab: Tensor) -> Reach:
    """The nearest of the things that are seen and near, at distances `far` `[A, N, E]` from the middles of agents. `may_grab`
    `[A, N, E]` are those that can be grabbed."""
    near = far <= AGENT + REACH
    return Reach(_nearest(far, near & seen), _nearest(far, near & may_grab))


def _nearest(far: Tensor, those: Tensor) -> Tensor:
    """The first of the nearest."""
    far = far.masked_fill(~those, float("inf"))
    best = (far == far.amin(1, keepdim=True)) & those
    return best & (best.cumsum(1) == 1)


def locked(owner: Tensor, reach: Tensor, word: Tensor, team: Tensor) -> Tensor:
    """Who has locked each thing `[N, E]` after agents of `team` `[A, 1]` said lock or unlock (`[A, E]`) to those in reach. Only
    who locked a thing unlocks it; where both teams lock at once, it belongs to the hiders."""

    def said(which: int, by: int) -> Tensor:
        return (reach & ((word == which) & (team == by)).unsqueeze(1)).any(0)

    free = owner == NOBODY
    owned = torch.where(free & said(LOCK, SEEKERS), SEEKERS, owner)
    owned = torch.where(free & said(LOCK, HIDERS), HIDERS, owned)
    for by in (HIDERS, SEEKERS):
        owned = torch.where((owner == by) & said(UNLOCK, by) & ~said(LOCK, by), NOBODY, owned)
    return owned


def grabbed(holds: Tensor, reach: Tensor, wants: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Who holds what `[A, N, E]`, and what of it is new. A hold lasts while its holder `wants` `[A, E]` it and the thing is
    `free` `[N, E]` of locks. Nobody takes what another holds; of two who want one thing, the first gets it."""
    kept = holds & wants.unsqueeze(1) & free
    taken = reach & (wants & ~kept.any(1)).unsqueeze(1) & free & ~kept.any(0)
    first = taken & (taken.cumsum(0) == 1)
    return kept | first, first


def leaning(things: Rects, walls: Rects, num_boxes: int) -> Tensor:
    """Which ramps `[R, E]` lean against a wall or a box: their high side is near to it."""
    ramps = things.some(num_boxes, len(things.x))
    tx, ty = ramps.x + ramps.hx * ramps.cos, ramps.y + ramps.hx * ramps.sin
    against = things.some(0, num_boxes).then(walls)
    return (distance(tx.unsqueeze(1), ty.unsqueeze(1), against) <= LEAN).any(1)


def going_up(x: Tensor, y: Tensor, ax: Tensor, ay: Tensor, ramps: Rects) -> Tensor:
    """Which agents walk against the low side of which ramps. `[A, R, E]`"""
    dx, dy, r = x.unsqueeze(1) - ramps.x, y.unsqueeze(1) - ramps.y, ramps
    u, v = dx * r.cos + dy * r.sin, dy * r.cos - dx * r.sin
    at_low = (u <= -r.hx) & (u >= -r.hx - AGENT - CLIMB_GAP) & (v.abs() <= r.hy)
    return at_low & (ax.unsqueeze(1) * r.cos + ay.unsqueeze(1) * r.sin > 0)
