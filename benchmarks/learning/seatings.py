"""Hiders of one player against seekers of another: all episodes at once, on any device.

Worlds of hide-and-seek last a fixed number of steps and nobody leaves, so a batch of first states is a batch of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import runnel as rl
from runnel.core.records import Batch
from runnel.core.rng import make_seed
from runnel.core.spaces import ActionSpec, EnvSpec
from runnel.envs.registry import make_tensor_team

RANDOM = "random"
"""The player that draws its actions evenly."""
Act = Callable[[Batch, Tensor], Tensor]
"""From what agents see (leaves `[N, ...]`) and uniform noise `[N, noise_size]` to their actions `[N, ...]`."""
Seat = tuple[tuple[int, ...], int, Act]
"""Some agents, by their places among all; how much noise they take; and what acts for them."""


def hiders_and_seekers(env: str, kwargs: Mapping[str, Any] | None = None) -> Any:
    """The world, which must have one kind of agents, hiders first."""
    world: Any = make_tensor_team(env, kwargs=dict(kwargs or {}))
    assert len(world.spec.kinds) == 1, "all agents see and do the same"
    assert world.max_steps, "episodes have a length"
    return world


def played(world: Any, players: Mapping[str, str], *, episodes: int, seed: int, device: str = "cpu") -> dict[str, Tensor]:
    """The numbers of `episodes` episodes (`episode_stats`), `[episodes]` each. `players` says who plays the `hider`s and the
    `seeker`s: the folder of a run, or `random`. Actions are drawn, as in training."""
    seats = [seat for name, player in players.items() for seat in seats_of(world, name, player, device)]
    generator = torch.Generator(device).manual_seed(make_seed(seed, "seatings"))
    spec = next(iter(world.spec.agents.values())).action
    with torch.inference_mode():
        state = world.initial(episodes, generator)
        for _ in range(world.max_steps):
            (seen,), active = world.observe(state), world.active(state)
            action = torch.zeros(episodes, len(world.spec.agents), *spec.shape, dtype=spec.dtype, device=device)
            for places, noise_size, act in seats:
                rows = Batch({key: x[:, places].flatten(0, 1) for key, x in seen.items()})
                noise = torch.rand(episodes * len(places), noise_size, generator=generator, device=device)
                action[:, places] = act(rows, noise.clamp_min(2.0**-25)).view(episodes, len(places), *spec.shape)
            if active is not None:
                action.mul_(active.view(*active.shape, *[1] * len(spec.shape)))
            state, _, _ = world.transition(state, [action])
        return dict(world.episode_stats(state))


def seats_of(world: Any, name: str, player: str, device: str) -> list[Seat]:
    """The agents whose names begin with `name`, in groups that one network serves."""
    agents = {agent: i for i, agent in enumerate(world.spec.agents) if agent.startswith(name)}
    spec: EnvSpec = world.spec.agents[next(iter(agents))]
    if player == RANDOM:
        return [(tuple(agents.values()), spec.action.noise_size, lambda _, noise: evenly(spec.action, noise))]
    policies, groups = rl.load(player).policies, dict[int, tuple[Any, list[int]]]()
    for agent, place in agents.items():
        net = policies[agent].net
        groups.setdefault(id(net), (net, []))[1].append(place)
    return [(tuple(places), net.noise_size, _acting(net, device)) for net, places in groups.values()]


def _acting(net: Any, device: str) -> Act:
    net.to(torch.device(device))
    net.eval()
    return lambda rows, noise: net.act(Batch(rows | {"noise": noise}))["action"]


def evenly(spec: ActionSpec, noise: Tensor) -> Tensor:
    """Choices that are uniform, of uniform noise `[N, noise_size]`: one of each part of the action.

    >>> evenly(ActionSpec("discrete", num_actions=3), torch.tensor([[0.1], [0.9]])).tolist()
    [0, 2]
    """
    sizes = [part.num_actions for part in spec.parts] or [spec.num_actions]
    drawn = (noise[:, : len(sizes)] * noise.new_tensor(sizes)).to(spec.dtype)
    return drawn if spec.parts else drawn[:, 0]
