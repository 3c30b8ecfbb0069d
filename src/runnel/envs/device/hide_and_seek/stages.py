"""How an episode of hide-and-seek went, in numbers that tell the stages of its curriculum apart.

All names of `detectors.py`: how far the box or ramp went that went farthest from where it was when the phase began, in the
preparation (`_prep`) and after it; how many were locked at the end of the preparation, and now; and so on. Two more:
`ramp_to_hiders`, from the middle of the hiders to the nearest ramp, and `surfed`, 1 where somebody moved what it stood on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.envs.device.base import Leaves
from runnel.envs.device.detectors import detectors
from runnel.envs.device.hide_and_seek.layouts import Size
from runnel.envs.device.hide_and_seek.play import NOBODY

RAMP_TO_HIDERS, SURFED = "ramp_to_hiders", "surfed"


def first_stages(place: Tensor) -> Leaves:
    """The leaves of a state in which this is kept, of worlds whose things are at `place` `[E, N, 2]`."""
    num, things, _ = place.shape
    none = torch.zeros(num, dtype=torch.bool, device=place.device)
    return {
        "mark": place,
        "moved": place.new_zeros(num, 2, things),
        "locked_prep": none.unsqueeze(1).repeat(1, things),
        "high_steps": place.new_zeros(num),
        "found": none,
        "surfed": none,
        "earned": place.new_zeros(num, 2),
    }


def next_stages(s: Leaves, after: Leaves, found: Tensor, paid: Tensor, preparation: int, size: Size) -> Leaves:
    """Those leaves (worlds last) after a step from `s` to `after`, in which a hider is `found` `[E]` or none is, and agents are
    `paid` `[A, E]`."""
    prep = s["t"] < preparation
    mark = torch.where(s["t"] == preparation, s["place"], s["mark"])
    far = (after["place"] - mark).square().sum(1).sqrt()
    above = (after["high"][size.hiders :] & s["here"][size.hiders :]).sum(0)
    # whoever is above and holds on to something moves with it
    rides = (after["high"] & after["holds"].any(1)).any(0)
    teams = (slice(0, size.hiders), slice(size.hiders, None))
    mean = torch.stack([paid[those].sum(0) / s["here"][those].sum(0) for those in teams])
    return {
        "mark": mark,
        "moved": torch.where(torch.stack([prep, ~prep]).unsqueeze(1), torch.maximum(s["moved"], far), s["moved"]),
        "locked_prep": torch.where(prep, after["owner"] != NOBODY, s["locked_prep"]),
        "high_steps": s["high_steps"] + above * ~prep,
        "found": s["found"] | (found & ~prep),
        "surfed": s["surfed"] | (rides & ~prep),
        "earned": s["earned"] + mean,
    }


def stage_numbers(s: Leaves, preparation: int, size: Size) -> dict[str, Tensor]:
    """Each `[E]`, of the episode so far, from leaves with worlds last."""
    dtype, there = s["place"].dtype, s["there"]
    moved = s["moved"] * there
    locked = ((s["owner"] != NOBODY) & there, s["locked_prep"] & there)
    of_things: list[Tensor] = []
    for those in (slice(0, size.boxes), slice(size.boxes, None)):
        of_things += [moved[0, those].amax(0), moved[1, those].amax(0)]
        of_things += [locked[1][those].sum(0).to(dtype), locked[0][those].sum(0).to(dtype)]
    steps = (s["t"] - preparation).clamp(min=0) * s["here"][size.hiders :].sum(0)
    high = s["high_steps"] / steps.clamp(min=1)
    unseen = ((s["t"] > preparation) & ~s["found"]).to(dtype)
    found = dict(zip(detectors("ramp"), (*of_things, high, unseen, *s["earned"]), strict=True))
    return found | {RAMP_TO_HIDERS: _ramp_to_hiders(s, size), SURFED: s["surfed"].to(dtype)}


def _ramp_to_hiders(s: Leaves, size: Size) -> Tensor:
    """From the middle of the hiders, who sit in their fort, to the nearest ramp. `[E]`"""
    hiders = s["here"][: size.hiders].to(s["pos"].dtype)
    middle = (s["pos"][: size.hiders] * hiders.unsqueeze(1)).sum(0) / hiders.sum(0)
    far = (s["place"][size.boxes :] - middle).square().sum(1).sqrt()
    nearest: Tensor = far.masked_fill(~s["there"][size.boxes :], float("inf")).amin(0)
    return nearest
