"""Worlds of hide-and-seek for tests: states in which something happens, and actions that make it happen."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from runnel.envs.device import HideAndSeek

Leaves = dict[str, Any]
WORDS = (5, 5, 5, 2, 3)


@cache
def world(size: str) -> HideAndSeek:
    return HideAndSeek(size, lidar=8, num_layouts=16)


def begin(env: HideAndSeek, num: int, seed: int) -> Leaves:
    """First states in double precision, so that what rounding does to a collision stays below what is compared."""
    state = env.initial(num, torch.Generator().manual_seed(seed))
    return {key: x.double() if x.dtype == torch.float32 else x.clone() for key, x in state.items()}


def beside_things(env: HideAndSeek, state: Leaves) -> Leaves:
    """Agents stand at things and look at them: where something happens. A step later, since what is seen is part of a state."""
    for i in range(env.size.agents):
        k = i % 3
        angle = 0.5 + 1.7 * i
        away = torch.tensor([torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))], dtype=torch.float64)
        state["pos"][:, i] = torch.where(state["here"][:, i, None], state["place"][:, k] + 0.6 * away, state["pos"][:, i])
        state["yaw"][:, i] = angle + torch.pi
    return env.transition(state, [torch.zeros(len(state["t"]), env.size.agents, 5, dtype=torch.int64)])[0]


def eager(num: int, agents: int, generator: torch.Generator) -> Tensor:
    """Actions of agents that mostly go ahead and hold on, and lock now and then."""
    drawn = torch.rand(num, agents, 5, generator=generator)
    act = (drawn * torch.tensor(WORDS)).long()
    act[..., 0] = torch.where(drawn[..., 0] < 0.7, 4, act[..., 0])
    act[..., 3] = drawn[..., 3] < 0.7
    act[..., 4] = torch.where(drawn[..., 4] < 0.6, 0, act[..., 4])
    return act


def ramp_at_wall(env: HideAndSeek) -> Leaves:
    """A ramp leans against the left wall, and the first hider stands at its low side; everything else is far away."""
    state = begin(env, 1, seed=0)
    state["walls"][:, 4:, :2] = 900.0
    ramp = env.size.boxes
    state["place"][0] = torch.tensor([[2.0, 2.0], [2.0, -2.0], [-2.55, 0.0]])
    state["turn"][0, ramp] = torch.pi  # its high side looks at the wall
    state["pos"][0] = torch.tensor([[-1.94, 0.0], [2.5, 0.5], [0.0, 2.5], [0.0, -2.5]])
    state["yaw"][0] = torch.tensor([torch.pi, 0.0, 0.0, 0.0])
    state["sees"][:] = False
    return state


def nothing(env: HideAndSeek, num: int) -> Tensor:
    return torch.zeros(num, env.size.agents, 5, dtype=torch.int64)
