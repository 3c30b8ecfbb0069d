"""Random states of kitchens, in which everything that can be is."""

from __future__ import annotations

from typing import Any

import numpy as np

from runnel.envs.device import Kitchen
from runnel.envs.device.kitchen.layouts import DISHES, FLOOR, ONIONS, POT, WINDOW

State = dict[str, Any]


def random_states(env: Kitchen, num: int, rng: np.random.Generator, *, cook_time: int, alone: bool) -> State:
    """Cooks who hold anything, many of them where there is something to do; things on counters; pots in any phase."""
    layout = env.layout
    pots = layout.num_pots
    at, facing = (np.array(x) for x in zip(*(_cooks(env, rng) for _ in range(num)), strict=True))
    num_counters = len(layout.places) - pots
    counters = rng.integers(0, 6, (num, num_counters)) * (rng.random((num, num_counters)) < 0.3)
    # in every second world no dish lies about, so that one from the pile is of use
    counters[::2][counters[::2] == 2] = 1
    onions, phase = rng.integers(1, 4, (num, pots)), rng.integers(0, 3, (num, pots))
    if alone:  # a full pot cooks, and no other one does
        onions = np.where(phase > 0, 3, np.minimum(onions, 2))
    codes = np.where(rng.random((num, pots)) < 0.2, 0, 6 + 3 * phase + onions - 1)
    ticks = np.where((codes >= 9) & (codes < 12), rng.integers(1, cook_time, (num, pots)), 0)
    held = rng.choice(6, (num, 2), p=(0.25, 0.25, 0.25, 0.05, 0.05, 0.15))
    state = {"at": at, "facing": facing, "held": held, "ticks": ticks}
    state |= {"things": np.concatenate((counters, codes), 1), "time": rng.integers(0, env.max_steps, num)}
    state |= {"soups": np.zeros(num, np.float32), "shaped": np.zeros(num, np.float32)}
    return {key: np.array(x, order="F") for key, x in state.items()}


def _cooks(env: Kitchen, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Two cells and two ways to look: most cooks stand before a pile, a window or, most often, a pot."""
    floor, layout = env.layout.cells(FLOOR), env.layout
    ways = [(cell, way) for cell in floor for way in range(4)]
    before = {
        kind: [(c, w) for c, w in ways if layout.ground[layout.ahead[w, c]] == kind] for kind in (ONIONS, DISHES, POT, WINDOW)
    }
    places = [before[POT], before[POT], before[POT], *before.values(), ways, ways]
    cooks = [(0, 0), (0, 0)]
    while cooks[0][0] == cooks[1][0]:
        chosen = [places[rng.integers(len(places))] for _ in range(2)]
        cooks = [found[rng.integers(len(found))] for found in chosen]
    return [cell for cell, _ in cooks], [way for _, way in cooks]


def busy(env: Kitchen, state: State, rng: np.random.Generator) -> np.ndarray:
    """Random actions of cooks who use their hands at most steps."""
    shape = state["at"].shape
    return np.where(rng.random(shape) < 0.75, 5, rng.integers(0, 6, shape))
