"""Hide-and-seek on tensors beside one world in plain Python, written from the rules: the same numbers at every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hide_and_seek_reference import World
from hide_and_seek_worlds import Leaves, begin, beside_things, eager, ramp_at_wall, world

from runnel.envs.device import HideAndSeek


def reference(env: HideAndSeek, state: Leaves, row: int) -> World:
    plain = {key: x[row].tolist() for key, x in state.items()}
    size = env.size
    return World(
        plain, hiders=size.hiders, boxes=size.boxes, side=size.side, preparation=env.preparation, lock_ramps=size.lock_ramps
    )


def same(env: HideAndSeek, state: Leaves, row: int, twin: World) -> None:
    def close(found: Any, wanted: Any) -> None:
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=found.dtype), rtol=1e-4, atol=1e-4)

    row_of = {key: x[row] for key, x in state.items()}
    agents, things = twin.agents, twin.things
    close(row_of["pos"], [(a.x, a.y) for a in agents])
    close(row_of["vel"], [(a.vx, a.vy) for a in agents])
    close(row_of["yaw"], [a.yaw for a in agents])
    close(row_of["spin"], [a.spin for a in agents])
    close(row_of["place"], [(r.x, r.y) for r in things])
    close(row_of["turn"], [r.turn for r in things])
    assert row_of["owner"].tolist() == [r.owner for r in things]
    assert row_of["high"].tolist() == [a.high for a in agents]
    assert row_of["climb"].tolist() == [a.climb for a in agents]
    assert row_of["holds"].tolist() == [[a.held == k for k in range(len(things))] for a in agents]
    num = len(agents)
    assert row_of["sees"].tolist() == [[twin.sees(i, j) for j in range(num + len(things))] for i in range(num)]


@pytest.mark.parametrize(("size", "num", "steps"), [("quadrant", 3, 40), ("arena", 1, 20)])
def test_plays_as_one_world_in_plain_python(size: str, num: int, steps: int) -> None:
    env, generator = world(size), torch.Generator().manual_seed(5)
    state = begin(env, num, seed=2)
    state = beside_things(env, state)
    state["t"] = state["t"] + env.preparation - 16
    twins, seen = [reference(env, state, row) for row in range(num)], set()
    for step in range(steps):
        act = eager(num, env.size.agents, generator)
        state, reward, ended = env.transition(state, [act])
        assert not ended.any()
        for row, twin in enumerate(twins):
            assert reward[row].tolist() == twin.step(act[row].tolist())
            same(env, state, row, twin)
        if step % 8 == 0:
            lidar = env.observe(state)[0]["obs/lidar"]
            wanted = [[twin.lidar(i, 8) for i in range(env.size.agents)] for twin in twins]
            here = state["here"]
            torch.testing.assert_close(lidar[here], torch.tensor(wanted, dtype=lidar.dtype)[here], rtol=1e-4, atol=1e-4)
        seen |= {"held"} if state["holds"].any() else set()
        seen |= {"locked"} if (state["owner"] > 0).any() else set()
        seen |= {"found"} if (reward < 0).any() else set()
        seen |= {"moved"} if (state["moved"] > 0.2).any() else set()
    assert seen == {"held", "locked", "found", "moved"}


def test_a_heap_of_things_comes_apart_as_in_plain_python() -> None:
    """Things in each other, one of them locked, with agents among them that pull and push; and a box in a corner of walls."""
    env, generator, num = world("quadrant"), torch.Generator().manual_seed(8), 4
    state = begin(env, num, seed=6)
    state["walls"][:, 4:, :2] = 900.0
    state["place"] = torch.rand(num, 3, 2, generator=generator).double() * 0.6
    state["pos"] = torch.rand(num, 4, 2, generator=generator).double() * 2.0 - 0.7
    state["owner"][::2, 1] = 1
    state["place"][1::2, 0], state["turn"][1::2, 0] = 2.73, 0.3
    state["pos"][1::2, 0], state["yaw"][1::2, 0] = 2.35, 0.8
    twins = [reference(env, state, row) for row in range(num)]
    state, _, _ = env.transition(state, [torch.zeros(num, 4, 5, dtype=torch.int64)])
    for row, twin in enumerate(twins):
        twin.step([[0] * 5] * 4)
        same(env, state, row, twin)
    begins = state["place"]
    for _ in range(10):
        act = eager(num, 4, generator)
        state, _, _ = env.transition(state, [act])
        for row, twin in enumerate(twins):
            twin.step(act[row].tolist())
            same(env, state, row, twin)
    assert ((state["place"] - begins).abs().amax(2) > 0.05).sum() >= 4


def test_float32_takes_the_same_steps() -> None:
    """Step by step from the same states, since collisions make much of rounding."""
    env, generator = world("quadrant"), torch.Generator().manual_seed(1)
    state = begin(env, 256, seed=3)
    state = beside_things(env, state)
    for _ in range(10):
        act = eager(256, env.size.agents, generator)
        single = {key: x.float() if x.dtype == torch.float64 else x for key, x in state.items()}
        rounded = {key: x.double() if x.dtype == torch.float32 else x for key, x in single.items()}
        found, _, _ = env.transition(single, [act])
        state, _, _ = env.transition(rounded, [act])
        far = (found["pos"] - state["pos"]).abs().flatten(1).amax(1)
        # a touch that is just not there, or a face that is just the other one, may fall out either way
        assert (far > 1e-4).float().mean() < 0.02


def test_climbs_a_ramp_walks_on_the_wall_and_drops_outside() -> None:
    env = world("quadrant")
    state = ramp_at_wall(env)
    twin, ahead = reference(env, state, 0), torch.zeros(1, 4, 5, dtype=torch.int64)
    ahead[0, 0, 0] = 4
    heights, rewards = [], []
    for _ in range(40):
        state, reward, _ = env.transition(state, [ahead])
        assert reward[0].tolist() == twin.step(ahead[0].tolist())
        same(env, state, 0, twin)
        heights.append(bool(state["high"][0, 0]))
        rewards.append(float(reward[0, 0]))
    assert heights[:3] == [False, False, True]
    assert not heights[-1]
    assert state["pos"][0, 0, 0] < -3.3, "over the wall and down"
    assert rewards[-1] <= -9.0
    assert rewards[0] > -2.0


def test_a_ramp_that_leans_against_nothing_is_no_way_up() -> None:
    env = world("quadrant")
    state = ramp_at_wall(env)
    state["place"][0, 2, 0] += 2.0
    state["pos"][0, 0, 0] += 2.0
    state["owner"][0, 2] = 1  # it would be pushed to the wall
    ahead = torch.zeros(1, 4, 5, dtype=torch.int64)
    ahead[0, 0, 0] = 4
    for _ in range(10):
        state, _, _ = env.transition(state, [ahead])
    assert not state["high"].any()
