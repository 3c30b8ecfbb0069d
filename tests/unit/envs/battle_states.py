"""Random states of battles, in which something happens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from runnel.envs.device import Battle
from runnel.envs.device.numpy_engine import columnwise
from runnel.envs.spaces import MASK

MIXED = [["marauder", "zergling", "hydralisk"], ["zealot", "marine", "stalker", "zergling"]]
"""All kinds, and sides of two sizes."""
State = dict[str, Any]


def in_the_middle(env: Battle, num: int, seed: int) -> State:
    """First states; in most worlds all are drawn together, and some are hurt, dead, close to the rim, or about to strike."""
    rng, state = np.random.default_rng(seed), columnwise(env.initial(num, torch.Generator().manual_seed(seed)))
    shape = state["x"].shape
    for key in ("x", "y"):
        state[key][num // 4 :] = rng.uniform(12.0, 20.0, shape)[num // 4 :]
        state[key][-num // 8 :] = rng.uniform(0.1, 4.0, shape)[-num // 8 :]
    state["health"] *= np.where(rng.random(shape) < 0.3, rng.random(shape), 1.0).astype(np.float32)
    state["health"][rng.random(shape) < 0.15] = 0.0
    # nobody begins without a unit
    state["health"][:, [0, -1]] = np.maximum(state["health"][:, [0, -1]], 1.0)
    state["wait"][...] = np.where(rng.random(shape) < 0.5, rng.uniform(-1.0, 1.0, shape), 0.0)
    aims = rng.integers(-1, len(env.sides.allies), state["aims"].shape)
    return {**state, "aims": aims}


def legal(env: Battle, state: State, rng: np.random.Generator) -> np.ndarray:
    """Random actions; three of four are open ones, and strikes are preferred."""
    mask = env.observe(state)[0][MASK]
    scores = rng.random(mask.shape) + 0.5 * (np.arange(mask.shape[2]) > 4)
    return np.where(
        rng.random(mask.shape[:2]) < 0.75, (scores * mask).argmax(2), rng.integers(0, mask.shape[2], mask.shape[:2])
    )


def focused(env: Battle, state: State) -> np.ndarray:
    """Allies by a script: of the enemies in reach strike the weakest, else go to the closest one, however far."""
    allies = len(env.sides.allies)
    strikes = env.observe(state)[0][MASK][:, :, 5:]
    health = np.where(strikes, state["health"][:, None, allies:], np.inf)
    dx, dy = (state[key][:, None, allies:] - state[key][:, :allies, None] for key in ("x", "y"))
    far = np.where(state["health"][:, None, allies:] > 0, dx**2 + dy**2, np.inf)
    closest = far.argmin(2)[:, :, None]
    to_x, to_y = (np.take_along_axis(d, closest, 2)[:, :, 0] for d in (dx, dy))
    way = np.stack((to_y, to_x, -to_y, -to_x)).argmax(0)
    return np.where(strikes.any(2), 5 + health.argmin(2), way)


def at_random(env: Battle, state: State, rng: np.random.Generator) -> np.ndarray:
    """Open actions, all equally often."""
    mask = env.observe(state)[0][MASK]
    return (rng.random(mask.shape) * mask).argmax(2)


def share_won(env: Battle, player: Any, num: int, seed: int) -> tuple[float, float]:
    """The share of battles that a player wins, and its mean return."""
    state = columnwise(env.initial(num, torch.Generator().manual_seed(seed)))
    won, total, here = np.zeros(num), np.zeros(num), np.ones(num, bool)
    for _ in range(env.max_steps):
        state, reward, over = env.transition(state, [player(env, state)])
        total += reward[:, 0] * here
        won = np.where(here & over[:, 0], env.episode_stats(state)["won"], won)
        here &= ~over[:, 0]
    return float(won.mean()), float(total.mean())
