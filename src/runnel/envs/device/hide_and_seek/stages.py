"""How an episode of hide-and-seek went, in numbers that tell the stages of its curriculum apart.

Names follow OpenAI's (Baker et al. 2020, arXiv:1909.07528): how far the box or ramp went that went farthest from where it was
when the phase began, in the preparation (`_prep`) and after it; how many were locked at the end of the preparation, and now.
"""

from __future__ import annotations

import torch
from torch import Tensor

from runnel.envs.device.base import Leaves
from runnel.envs.device.hide_and_seek.layouts import Size
from runnel.envs.device.hide_and_seek.play import NOBODY


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
    }


def next_stages(s: Leaves, after: Leaves, found: Tensor, preparation: int, size: Size) -> Leaves:
    """Those leaves (worlds last) after a step from `s` to `after`, in which a hider is `found` `[E]` or none is."""
    prep = s["t"] < preparation
    mark = torch.where(s["t"] == preparation, s["place"], s["mark"])
    far = (after["place"] - mark).square().sum(1).sqrt()
    above = (after["high"][size.hiders :] & s["here"][size.hiders :]).sum(0)
    # whoever is above and holds on to something moves with it
    rides = (after["high"] & after["holds"].any(1)).any(0)
    return {
        "mark": mark,
        "moved": torch.where(torch.stack([prep, ~prep]).unsqueeze(1), torch.maximum(s["moved"], far), s["moved"]),
        "locked_prep": torch.where(prep, after["owner"] != NOBODY, s["locked_prep"]),
        "high_steps": s["high_steps"] + above * ~prep,
        "found": s["found"] | (found & ~prep),
        "surfed": s["surfed"] | (rides & ~prep),
    }


def stage_numbers(s: Leaves, preparation: int, size: Size) -> dict[str, Tensor]:
    """Each `[E]`, of the episode so far, from leaves with worlds last."""
    dtype, there = s["place"].dtype, s["there"]
    moved = s["moved"] * there
    locked = ((s["owner"] != NOBODY) & there, s["locked_prep"] & there)
    found: dict[str, Tensor] = {}
    for kind, those in (("box", slice(0, size.boxes)), ("ramp", slice(size.boxes, None))):
        found[f"max_{kind}_move_prep"] = moved[0, those].amax(0)
        found[f"max_{kind}_move"] = moved[1, those].amax(0)
        found[f"num_{kind}_lock_prep"] = locked[1][those].sum(0).to(dtype)
        found[f"num_{kind}_lock"] = locked[0][those].sum(0).to(dtype)
    seekers = s["here"][size.hiders :].sum(0)
    steps = (s["t"] - preparation).clamp(min=0) * seekers
    found["seekers_high"] = s["high_steps"] / steps.clamp(min=1)
    found["unseen"] = ((s["t"] > preparation) & ~s["found"]).to(dtype)
    found["surfed"] = s["surfed"].to(dtype)
    found["ramp_to_hiders"] = _ramp_to_hiders(s, size)
    return found


def _ramp_to_hiders(s: Leaves, size: Size) -> Tensor:
    """From the middle of the hiders, who sit in their fort, to the nearest ramp. `[E]`"""
    hiders = s["here"][: size.hiders].to(s["pos"].dtype)
    middle = (s["pos"][: size.hiders] * hiders.unsqueeze(1)).sum(0) / hiders.sum(0)
    far = (s["place"][size.boxes :] - middle).square().sum(1).sqrt()
    nearest: Tensor = far.masked_fill(~s["there"][size.boxes :], float("inf")).amin(0)
    return nearest
