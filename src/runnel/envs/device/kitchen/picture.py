"""A kitchen from above, in letters."""

from __future__ import annotations

from runnel.envs.device.base import Leaves
from runnel.envs.device.kitchen.layouts import NUM_COOKS, STARTS, KitchenMap
from runnel.envs.device.kitchen.rules import COOKING, DISH, FULL, IDLE, ONION, READY

LOOKS = "^v><"
WAYS = ("north", "south", "east", "west")


def picture(layout: KitchenMap, state: Leaves, world: int) -> str:
    """The map as in `layouts.py`, with cooks `^v><` by where they look and, on counters, onions `o`, dishes `d` and soups `s`;
    below it, what cooks hold and what is in pots."""
    one = {key: state[key][world].tolist() for key in ("at", "facing", "held", "things", "ticks")}
    letters = list("".join(layout.rows).translate(str.maketrans(STARTS, "  ")))
    counters = list(zip(layout.places, one["things"], strict=True))[: -layout.num_pots]
    for cell, thing in counters:
        letters[cell] = letters[cell] if not thing else "o" if thing == ONION else "d" if thing == DISH else "s"
    for cell, facing in zip(one["at"], one["facing"], strict=True):
        letters[cell] = LOOKS[facing]
    rows = ["".join(letters[r * layout.width :][: layout.width]) for r in range(layout.height)]
    rows += [_cook(layout, i, one["at"][i], one["facing"][i], one["held"][i]) for i in range(NUM_COOKS)]
    pots = zip(layout.places[-layout.num_pots :], one["things"][-layout.num_pots :], one["ticks"], strict=True)
    return "\n".join([*rows, *(_pot(layout, *pot) for pot in pots)])


def _where(layout: KitchenMap, cell: int) -> str:
    return f"row {cell // layout.width}, column {cell % layout.width}"


def _cook(layout: KitchenMap, i: int, cell: int, facing: int, held: int) -> str:
    things = {0: "nothing", ONION: "an onion", DISH: "a dish"}
    return f"cook_{i} at {_where(layout, cell)}, looks {WAYS[facing]}, holds {things.get(held, f'a soup of {held - DISH}')}"


def _pot(layout: KitchenMap, cell: int, content: int, ticks: int) -> str:
    if not content:
        return f"pot at {_where(layout, cell)}: empty"
    state = "ready" if content >= READY else f"cooking for {ticks}" if content >= COOKING else "not cooking"
    return f"pot at {_where(layout, cell)}: {(content - IDLE) % FULL + 1} onions, {state}"
