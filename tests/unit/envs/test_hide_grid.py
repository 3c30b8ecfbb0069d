"""Hide-and-seek on a grid: batched worlds against one in plain Python, step by step; and what must hold in every state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hide_by_hand import ByHand, crosses, place

from runnel.core.errors import ConfigError
from runnel.core.routes import sides_of, team_routes
from runnel.envs.device import TENSOR_TEAMS, HideAndSeekGrid, TensorTeam
from runnel.envs.device.hide_grid.moves import LOCK
from runnel.envs.device.hide_grid.plan import CELLS, SIZE, WIDTH, bits
from runnel.envs.device.hide_grid.sight import lines
from runnel.envs.device.numpy_engine import columnwise

ODD: dict[str, Any] = {"hiders": 1, "seekers": 3, "blocks": 3, "steps": 40, "preparation": 0.25, "two_doors": 0.0}


def busy(rng: np.random.Generator, state: Any, num: int) -> np.ndarray:
    """Random actions of agents who often keep their way and their hold, so that things move and ladders are climbed."""
    keeps = rng.random(state["facing"].shape) < 0.5
    return np.where(keeps, state["facing"] + 1, rng.integers(0, num, state["facing"].shape))


def close_by(env: HideAndSeekGrid, num: int, seed: int) -> Any:
    """First states; in every second world all begin in the room, as a crowd, and a hider on the ladder in its corner."""
    state = columnwise(env.initial(num, torch.Generator().manual_seed(seed)))
    for world in range(1, num, 2):
        flips, walls = state["room"][world, :2], state["room"][world, 2:]
        sides = np.where(flips == 1, SIZE - 1 - walls, walls)
        cells = [(r, c) for r in range(sides[0]) for c in range(sides[1])]
        cells = [(SIZE - 1 - r if flips[0] else r, SIZE - 1 - c if flips[1] else c) for r, c in cells]
        numbers = [(r + 1) * WIDTH + c + 1 for r, c in cells]
        taken = {*state["agents"][world, : env.sizes.hiders], *state["things"][world, :-1]}
        free = iter([n for n in reversed(numbers) if n not in taken])
        state["things"][world, -1] = state["agents"][world, 0] = next(free)
        # what does not fit stays where it was
        for seeker in range(env.sizes.hiders, env.sizes.agents):
            state["agents"][world, seeker] = next(free, state["agents"][world, seeker])
        state["came_from"][world] = state["things"][world]
    for world in range(2, num, 4):
        stage_a_shove(env, state, world)
    state["sees"] = env._sees(state)
    return state


def stage_a_shove(env: HideAndSeekGrid, state: Any, world: int) -> None:
    """Preparation is over, a hider holds a block in the open, and a seeker stands behind the block."""
    row = 3 if state["room"][world, 0] else 8
    cells = (row + 1) * WIDTH + np.arange(SIZE) + 1
    hiders = env.sizes.hiders
    state["agents"][world, 0], state["things"][world, 0], state["agents"][world, hiders] = cells[6], cells[5], cells[4]
    state["facing"][world, 0], state["facing"][world, hiders], state["holds"][world, 0] = 2, 3, 1
    if world % 8 == 6:  # he stands beside the block, not behind it
        state["agents"][world, 0], state["facing"][world, 0] = cells[5] - WIDTH, 1
    # the others who are outside, out of the way
    state["things"][world, -1] = cells[2] + WIDTH
    for k in range(1, env.sizes.seekers):
        state["agents"][world, hiders + k] = cells[5 + k] + WIDTH
    state["came_from"][world] = state["things"][world]
    state["time"][world] = env.sizes.prep_steps


def flat(seen: dict[str, Any], num_features: int) -> list[float]:
    """An observation by hand in the order of the vector, where numbers of one kind stand together for all entities."""
    blocks, ladder = seen["things"], []
    parts = [*seen["self"], *seen["looks"], *seen["flags"], *seen["team"], *seen["around"], *seen["front"]]
    for group in (seen["others"], [*blocks, *ladder], seen["doors"]):
        parts += [entity[k] for k in range(len(group[0]) if group else 0) for entity in group]
    assert len(parts) == num_features
    return [float(x) for x in parts]


@pytest.mark.parametrize("kwargs", [{}, ODD])
def test_plays_step_by_step_as_one_world_in_plain_python(kwargs: dict[str, Any]) -> None:
    """Whole episodes of 32 worlds: states, rewards, observations and statistics, with every rule at work."""
    env = HideAndSeekGrid(**kwargs)
    sizes, rng = env.sizes, np.random.default_rng(0)
    state = close_by(env, 32, seed=1)
    hands = [ByHand(state, w, hiders=sizes.hiders, steps=sizes.steps, prep=sizes.prep_steps) for w in range(32)]
    happened: dict[str, int] = {"pushed": 0, "held": 0, "climbed": 0, "locked": 0, "paid": 0}
    for step in range(sizes.steps):
        actions, before = busy(rng, state, 7), state
        state, reward, ended = env.transition(state, [actions])
        seen, lies = env.observe(state)[0]["obs"], state["things"]
        assert not ended.any()
        for w, hand in enumerate(hands):
            assert hand.step(actions[w].tolist()) == reward[w].tolist()
            assert [place(c) for c in state["agents"][w]] == list(hand.at.values())
            assert [place(c) for c in lies[w]] == list(hand.lies.values())
            assert [("hider", "seeker")[o - 1] if o else None for o in state["locks"][w]] == list(hand.owner.values())
            # what is seen takes long by hand, so each world has its turn
            for i, name in enumerate(hand.at) if (w + step) % 4 == 0 else ():
                assert np.allclose(seen[w, i], flat(hand.observation(name), seen.shape[2]), atol=1e-6), name
        moved = (lies != before["things"]).any(1)
        happened["pushed"] += int((moved & (before["holds"] == 0).all(1)).sum())
        happened["held"] += int((moved & (before["holds"] > 0).any(1)).sum())
        happened["climbed"] += int((state["up"] & ~before["up"]).sum())
        happened["locked"] += int((state["locks"] > before["locks"]).sum())
        happened["paid"] += int((reward[:, 0] > 0).sum())
    said = env.episode_stats(state)
    for w, hand in enumerate(hands):
        assert {k: pytest.approx(float(x[w]), abs=1e-5) for k, x in said.items()} == hand.statistics()
    happened["shoved"] = sum(hand.shoves for hand in hands)
    assert min(happened.values()) >= 4, happened
    assert sum(hand.losses for hand in hands) >= 1


def test_lines_of_sight_are_those_of_exact_geometry() -> None:
    """250 random pairs: the cells of the table, against a line that is cut with each cell in fractions."""
    rng, words, inner = np.random.default_rng(3), bits(), [c for c in range(CELLS) if bits()[:, c].any()]
    table = lines().reshape(len(words), CELLS, CELLS)
    for _ in range(250):
        a, b = rng.choice(inner, 2)
        crossed = {c for c in inner if (table[:, a, b] & words[:, c]).any()}
        assert crossed == {c for c in inner if c not in (a, b) and crosses(place(a), place(b), place(c))}
    assert (table == table.swapaxes(1, 2)).all()


@pytest.mark.parametrize("kwargs", [{}, ODD, {"hiders": 3, "seekers": 2, "blocks": 5, "preparation": 0.0}])
def test_what_holds_in_every_state(kwargs: dict[str, Any]) -> None:
    env, rng = HideAndSeekGrid(**kwargs), np.random.default_rng(1)
    sizes = env.sizes
    state = close_by(env, 256, seed=5)
    first, num_locked = state, 0
    for _ in range(sizes.steps):
        before, actions = state, busy(rng, state, 7)
        state, reward, _ = env.transition(state, [actions])
        agents, things, up, ground = state["agents"], state["things"], state["up"], state["ground"]
        worlds = np.arange(256)[:, None]
        # nobody shares a cell with somebody, nothing with something; agents and things only where one is climbed
        for cells in (agents, things):
            assert (np.sort(cells)[:, 1:] != np.sort(cells)[:, :-1]).all()
        on_block = (agents[:, :, None] == things[:, None, :-1]).any(2)
        on_wall = ground[worlds, agents] == 1
        assert (up == (on_block | on_wall)).all()
        # nothing is in a wall or on the rim, and nobody leaves the board
        assert (ground[worlds, things] == 0).all()
        assert (ground[worlds, agents] != 2).all()
        # each agent moves itself and what it holds, pushes or shoves by a cell, and nobody but who shoves moves others
        calm = before["time"] < sizes.prep_steps
        for cells, old in ((agents, before["agents"]), (things, before["things"])):
            (r, c), (r0, c0) = np.divmod(cells, WIDTH), np.divmod(old, WIDTH)
            far = abs(r - r0) + abs(c - c0)
            assert (far <= sizes.agents).all()
            assert (far[calm] <= (1 if cells is agents else sizes.hiders)).all()
        # up only from the ladder, or from up
        came_up = up & ~before["up"]
        assert (~came_up | (before["agents"] == before["things"][:, -1:]) | (before["agents"] == things[:, -1:])).all()
        # what is locked before and after was not moved
        locked = (before["locks"] > 0) & (before["locks"] == state["locks"])
        stays = things == before["things"]
        # with two turns of locks in a step, one may be opened, its block pushed, and closed again
        assert (~locked | stays | ((actions == LOCK).sum(1) > 1)[:, None]).all()
        num_locked += int(locked.sum())
        assert (reward[:, : sizes.hiders].sum(1) * sizes.seekers + reward[:, sizes.hiders :].sum(1) * sizes.hiders == 0).all()
        seekers = slice(sizes.hiders, None)
        assert (agents[calm, seekers] == first["agents"][calm, seekers]).all()
        assert (state["facing"][calm, seekers] == first["facing"][calm, seekers]).all()
        assert (reward[calm] == 0).all()
        assert (abs(reward[~calm]) == 1).all()
        assert (env.active(before) == (~calm[:, None] | (np.arange(sizes.agents) < sizes.hiders))).all()
        # what is held is in front of who holds it, is not locked, and has one holder
        held = state["holds"] > 0
        front = agents + np.array([-WIDTH, WIDTH, -1, 1])[state["facing"]]
        assert (front[held] == np.take_along_axis(things, np.maximum(state["holds"] - 1, 0), 1)[held]).all()
        assert (np.take_along_axis(state["locks"], np.maximum(state["holds"] - 1, 0), 1)[held] == 0).all()
    assert state["up"].any()
    assert num_locked > 1000


def test_rooms_are_closed_but_for_their_doors() -> None:
    """Everybody begins where the rules say: hiders and blocks within the walls, which only doors open."""
    env = HideAndSeekGrid(two_doors=0.5)
    state = columnwise(env.initial(400, torch.Generator().manual_seed(2)))
    two = 0
    for w in range(400):
        free = {place(c) for c in range(CELLS) if state["ground"][w, c] == 0}
        doors = {place(c) for c in state["doors"][w] if c}
        assert doors <= free
        two += len(doors) == 2
        room = reached(place(state["agents"][w, 0]), free - doors)
        everyone = [place(c) for c in (*state["agents"][w], *state["things"][w])]
        assert [p in room for p in everyone] == [True, True, False, False, True, True, False]
        assert 9 <= len(room) <= 25
        assert reached(place(state["agents"][w, 0]), free) == free
        assert len({*everyone, *doors}) == 7 + len(doors)
    assert 160 <= two <= 240


def reached(start: Any, free: Any) -> set[Any]:
    """The cells of `free` that one can walk to from `start`."""
    found, edge = {start}, [start]
    while edge:
        r, c = edge.pop()
        new = {(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)} & free - found
        found |= new
        edge += new
    return found


def test_tensors_play_as_arrays_do() -> None:
    """The same worlds as tensors and as arrays: bit for bit, also the global state, which nobody's sight cuts."""
    env, rng = HideAndSeekGrid(blocks=3), np.random.default_rng(4)
    state = env.initial(32, torch.Generator().manual_seed(3))
    twin = columnwise(state)
    for _ in range(60):
        actions = busy(rng, twin, 7)
        (state, reward, _), (twin, other, _) = (
            env.transition(state, [torch.from_numpy(actions)]),
            env.transition(twin, [actions]),
        )
        assert np.array_equal(reward.numpy(), other)
        assert reward.dtype == torch.float32
        assert torch.equal(torch.from_numpy(env.observe(twin)[0]["obs"].copy()), env.observe(state)[0]["obs"].contiguous())
        assert np.array_equal(env.global_state(state).numpy(), env.global_state(twin))
    for name, numbers in env.episode_stats(state).items():
        assert np.allclose(numbers.numpy(), env.episode_stats(twin)[name]), name


def test_the_global_state_tells_every_two_worlds_apart_that_play_differently() -> None:
    """A change of anything that counts in the game changes the global state."""
    env = HideAndSeekGrid()
    state = columnwise(env.initial(1, torch.Generator().manual_seed(3)))
    base = env.global_state(state).copy()
    changes = {"agents": 1, "facing": 1, "up": True, "holds": 1, "things": 1, "locks": 1, "time": 1, "doors": 1, "room": 1}
    for key, by in changes.items():
        for at in np.ndindex(state[key].shape[1:]):
            other = {k: x.copy() for k, x in state.items()}
            other[key][(0, *at)] = (other[key][(0, *at)] + by) % 4 if key == "facing" else other[key][(0, *at)] + by
            assert not np.array_equal(env.global_state(other), base), (key, at)


# ------------------------------------------------------------------------------------------------- statistics of episodes
def test_a_vector_says_the_numbers_of_each_episode() -> None:
    env = HideAndSeekGrid(steps=5)
    sides = sides_of(team_routes(["hider_.*=hiders", "seeker_.*=seekers"]), env.spec)
    vector = TensorTeam(env, 3, sides=sides, seed=1)
    twin, rng = vector._state, np.random.default_rng(0)
    for _ in range(5):
        actions = rng.integers(0, 7, (3, 4))
        twin = env.transition(twin, [actions])[0]
        rows = {"hiders": actions[:, :2], "seekers": actions[:, 2:]}
        vector.send({policy: torch.from_numpy(x.reshape(-1).copy()) for policy, x in rows.items()})
    found, said = vector.episodes(), env.episode_stats(twin)
    assert len(found) == 3
    for world, episode in enumerate(found):
        assert dict(episode.statistics) == pytest.approx({k: float(x[world]) for k, x in said.items()})
        assert episode.by_policy["hiders"] == episode.statistics["hider_return"] == -episode.by_policy["seekers"]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"hiders": 0}, "env_kwargs.hiders.*at least 1"),
        ({"blocks": 0}, "env_kwargs.blocks.*at least 1"),
        ({"hiders": 5, "blocks": 5}, "smallest room has 9 cells"),
        ({"seekers": 25}, "env_kwargs.seekers.*at most 24"),
        ({"steps": 0}, "env_kwargs.steps"),
        ({"preparation": 1.5}, "env_kwargs.preparation.*share"),
        ({"two_doors": -0.1}, "env_kwargs.two_doors.*share"),
    ],
)
def test_what_cannot_be_played_is_refused(kwargs: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        HideAndSeekGrid(**kwargs)


def test_it_has_a_name() -> None:
    assert TENSOR_TEAMS["HideAndSeekGrid"] is HideAndSeekGrid


def test_a_picture_shows_walls_blocks_locks_and_agents() -> None:
    env = HideAndSeekGrid(blocks=3)
    state = columnwise(env.initial(1, torch.Generator().manual_seed(1)))
    state["locks"][0] = [0, 1, 2, 0]
    lines = env.picture(state).splitlines()
    assert [len(line) for line in lines] == [SIZE] * SIZE
    cells = {place(c): mark for c, mark in zip(state["things"][0], "oOXL", strict=True)}
    cells |= {place(c): mark for c, mark in zip(state["agents"][0], "hhss", strict=True)}
    cells |= {place(c): "#" for c in range(CELLS) if state["ground"][0, c] == 1}
    assert {(r, c): mark for r, line in enumerate(lines) for c, mark in enumerate(line) if mark != "."} == cells
    state["agents"][0, 0], state["up"][0, 0] = state["things"][0, 0], True
    assert env.picture(state).count("H") == 1
