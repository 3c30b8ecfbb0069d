"""What must hold in every world of hide-and-seek, whatever agents do: walls, locks, holds, energy, sight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hide_and_seek_worlds import Leaves, beside_things, eager, nothing, world
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runnel.envs.device import HideAndSeek
from runnel.envs.device.hide_and_seek.geometry import distance, overlap
from runnel.envs.device.hide_and_seek.world import things_of, walls_of, worlds_last

SIZES = ("quadrant", "arena")


def busy(env: HideAndSeek, num: int, seed: int, *, fast: bool = True) -> Leaves:
    """Worlds in which agents stand at things, at any speed that there is."""
    generator = torch.Generator().manual_seed(seed)
    state = beside_things(env, {k: x.clone() for k, x in env.initial(num, generator).items()})
    if fast:
        angle = torch.rand(num, env.size.agents, generator=generator) * 6.3
        state["vel"] = 3.0 * torch.stack([angle.cos(), angle.sin()], 2)
        state["spin"] = torch.rand(num, env.size.agents, generator=generator) * 6.0 - 3.0
    state["t"] = state["t"] + env.preparation
    return state


def through_walls(before: Tensor, after: Tensor, walls: Tensor) -> Tensor:
    """Which points `[E, K, 2]` came from one side of the middle line of a wall to the other, where the wall is."""
    crossed = torch.zeros(before.shape[:2], dtype=torch.bool)
    for w in range(walls.shape[1]):
        middle, half = walls[:, w, None, :2], walls[:, w, None, 2:]
        thin = (half[..., 1] < half[..., 0]).long().unsqueeze(2).expand(-1, before.shape[1], -1)
        a, b = before - middle, after - middle
        x0, x1 = a.gather(2, thin).squeeze(2), b.gather(2, thin).squeeze(2)
        y0, y1 = a.gather(2, 1 - thin).squeeze(2), b.gather(2, 1 - thin).squeeze(2)
        share = x0 / (x0 - x1).where(x0 != x1, torch.ones_like(x0))
        crossed |= (x0 * x1 < 0) & ((y0 + (y1 - y0) * share).abs() < half.amax(2))
    return crossed


@given(st.integers(0, 10_000))
@settings(max_examples=6, deadline=None)
def test_nothing_comes_through_a_wall_locks_hold_and_holds_stay(seed: int) -> None:
    env, generator = world(SIZES[seed % 2]), torch.Generator().manual_seed(seed)
    state = busy(env, 24, seed)
    for _ in range(12):
        after, _, _ = env.transition(state, [eager(24, env.size.agents, generator)])
        low = ~state["high"] & ~after["high"] & after["here"]
        assert not (through_walls(state["pos"], after["pos"], state["walls"]) & low).any()
        there = after["there"]
        assert not (through_walls(state["place"], after["place"], state["walls"]) & there).any()
        s = worlds_last(after)
        into = overlap(things_of(s).at(1), walls_of(s)).amax(1).T
        assert (into[there] < 0.02 + 1e-4).all()
        far = distance(s["pos"][:, 0].unsqueeze(1), s["pos"][:, 1].unsqueeze(1), walls_of(s)).amin(1).T
        assert (far[low] > 0.2 - 1e-4).all()
        locked = after["owner"] > 0
        for leaf in ("place", "turn"):
            assert torch.equal(after[leaf][locked], state[leaf][locked])
        keeps_offset(after)
        state = after


def keeps_offset(state: Leaves) -> None:
    """What is held is where its holder has it."""
    envs, agents, things = state["holds"].nonzero(as_tuple=True)
    yaw, offset = state["yaw"][envs, agents], state["offset"][envs, agents]
    away = state["place"][envs, things] - state["pos"][envs, agents]
    ahead = away[:, 0] * yaw.cos() + away[:, 1] * yaw.sin()
    left = away[:, 1] * yaw.cos() - away[:, 0] * yaw.sin()
    found = torch.stack([ahead, left, state["turn"][envs, things] - yaw], 1)
    torch.testing.assert_close(found, offset, rtol=0.0, atol=1e-4)


@given(st.integers(0, 10_000))
@settings(max_examples=6, deadline=None)
def test_without_forces_no_agent_gets_faster(seed: int) -> None:
    env = world(SIZES[seed % 2])
    state, act = busy(env, 24, seed), nothing(env, 24)
    for _ in range(6):
        after, _, _ = env.transition(state, [act])
        assert (after["vel"].square().sum(2) <= state["vel"].square().sum(2) + 1e-6).all()
        assert (after["spin"].abs() <= state["spin"].abs() + 1e-6).all()
        state = after


@given(st.integers(0, 10_000))
@settings(max_examples=3, deadline=None)
def test_what_lies_in_each_other_comes_apart(seed: int) -> None:
    """Everything is thrown on one heap in an empty hall; after three seconds nothing is deeper in another than 1 cm."""
    env, generator = world("quadrant"), torch.Generator().manual_seed(seed)
    state = {k: x.clone() for k, x in env.initial(24, generator).items()}
    state["walls"][:, 4:, :2] = 900.0
    for leaf in ("place", "pos"):
        state[leaf] = torch.rand(state[leaf].shape, generator=generator) * 1.6 - 0.8
    for _ in range(30):
        state, _, _ = env.transition(state, [nothing(env, 24)])
    s = worlds_last(state)
    between = overlap(things_of(s).at(1), things_of(s)) * ~torch.eye(env.size.things, dtype=torch.bool)[:, :, None]
    assert between.max() < 0.01
    assert distance(s["pos"][:, 0].unsqueeze(1), s["pos"][:, 1].unsqueeze(1), things_of(s)).min() > 0.2 - 0.01
    apart = torch.cdist(state["pos"], state["pos"]) + torch.eye(env.size.agents)
    assert apart.min() > 0.4 - 0.01


@pytest.mark.parametrize("size", SIZES)
def test_two_who_look_at_each_other_see_each_other_or_neither_does(size: str) -> None:
    env = world(size)
    first = env.initial(64, torch.Generator().manual_seed(4))
    found = []
    for i in range(env.size.agents):
        for j in range(i):
            way = first["pos"][:, i] - first["pos"][:, j]
            yaw = first["yaw"].clone()
            yaw[:, j], yaw[:, i] = torch.atan2(way[:, 1], way[:, 0]), torch.atan2(-way[:, 1], -way[:, 0])
            after, _, _ = env.transition({**first, "yaw": yaw}, [nothing(env, 64)])
            assert torch.equal(after["sees"][:, i, j], after["sees"][:, j, i])
            found.append(after["sees"][:, i, j])
            above = {**first, "yaw": yaw, "high": torch.ones_like(first["high"])}
            seen = torch.from_numpy(env._sees(worlds_last(above)).movedim(-1, 0).numpy())[:, i, j]
            assert torch.equal(seen, first["here"][:, i] & first["here"][:, j]), "from above nothing is in the way"
    both = torch.stack(found)
    assert both.any()
    assert not both.all()


@pytest.mark.parametrize("size", SIZES)
def test_in_the_preparation_seekers_do_nothing_and_nobody_is_paid(size: str) -> None:
    env, generator = world(size), torch.Generator().manual_seed(2)
    state = env.initial(32, generator)
    state["t"] = state["t"] + env.preparation - 6
    seekers = torch.arange(env.size.agents) >= env.size.hiders
    for t in range(env.preparation - 6, env.preparation + 3):
        act = eager(32, env.size.agents, generator)
        other = act.clone()
        other[:, seekers] = eager(32, int(seekers.sum()), generator)
        after, reward, _ = env.transition(state, [act])
        twin, _, _ = env.transition(state, [other])
        prepares = t < env.preparation
        assert all(torch.equal(after[k], twin[k]) for k in after) == prepares
        assert torch.equal(env.active(state), state["here"] & ~(seekers & prepares))
        assert bool((reward == 0).all()) == prepares
        if not prepares:
            here = state["here"]
            assert (reward[~here] == 0).all()
            assert (reward[here].abs() == 1).all()
            found = after["sees"][:, env.size.hiders :, : env.size.hiders].flatten(1).any(1)
            hiders = reward[:, : env.size.hiders][here[:, : env.size.hiders]]
            assert torch.equal(hiders > 0, (~found).unsqueeze(1).expand(-1, env.size.hiders)[here[:, : env.size.hiders]])
        state = after


@pytest.mark.parametrize("size", SIZES)
def test_everything_stays_finite(size: str) -> None:
    """Some worlds for an episode; 1,000 worlds of 200 steps were played once by hand."""
    env, generator = HideAndSeek(size, surfing=True, lidar=4, num_layouts=16), torch.Generator().manual_seed(7)
    num = 64
    state = env.initial(num, generator)
    with torch.no_grad():
        for _ in range(80):
            act = (torch.rand(num, env.size.agents, 5, generator=generator) * torch.tensor([5, 5, 5, 2, 3])).long()
            state, reward, _ = env.transition(state, [act])
    assert torch.isfinite(reward).all()
    for leaves in (state, *env.observe(state), env.episode_stats(state), {"global": env.global_state(state)}):
        assert all(torch.isfinite(x.float()).all() for x in leaves.values())


class HostTensors(TorchDispatchMode):
    """Collects operations that read or make a tensor in the host's memory, which a CUDA graph cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = op(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if any(x.device.type != "meta" for x in tensors):
            self.found.add(str(op))
        return out


@pytest.mark.parametrize("size", SIZES)
def test_a_graph_of_cuda_could_record_it(size: str) -> None:
    """On tensors without memory no function can read a number, or make a shape of one; nor may anything come from the host."""
    env = HideAndSeek(size, surfing=True, num_layouts=16)
    state = {k: x.to("meta") for k, x in env.initial(3, torch.Generator().manual_seed(0)).items()}
    act, host = nothing(env, 3).to("meta"), HostTensors()

    def play() -> tuple[Leaves, Tensor, Tensor]:
        after, reward, ended = env.transition(state, [act])
        env.observe(after), env.active(after), env.global_state(after), env.episode_stats(after)
        return after, reward, ended

    play()  # constants come to the device at the first call
    with host:
        after, reward, ended = play()
    assert host.found == set()
    assert (reward.shape, ended.shape) == ((3, env.size.agents), (3, env.size.agents))
    assert {k: (x.shape, x.dtype) for k, x in after.items()} == {k: (x.shape, x.dtype) for k, x in state.items()}
