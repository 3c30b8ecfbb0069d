"""Hide-and-seek as an environment: its parts, what agents observe, the numbers of an episode, its picture, its vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hide_and_seek_worlds import Leaves, nothing, ramp_at_wall, world
from tensor_worlds import sides

from runnel.core.checks import check_tensor_team
from runnel.core.errors import ConfigError
from runnel.envs.device import HideAndSeek, TeamView, TensorTeam
from runnel.envs.device.detectors import detectors
from runnel.envs.device.hide_and_seek.layouts import SIZES, layout_table
from runnel.envs.device.hide_and_seek.picture import BOX, FLOOR, TEAMS, WALLS
from runnel.kernels.fusing import Fused


@pytest.mark.parametrize("size", SIZES)
def test_is_a_world_of_teams(size: str) -> None:
    env = world(size)
    check_tensor_team(env)
    view = TeamView(env)
    obs, _ = view.reset(seed=1)
    assert view.agents == [a for i, a in enumerate(view.possible_agents) if a.startswith("hider") and view._state["here"][0, i]]
    action = view.action_space("hider_0").sample()
    obs, reward, *_ = view.step({"hider_0": action})
    assert set(obs["hider_0"]) == {k.removeprefix("obs/") for k in env.spec.agents["hider_0"].obs}
    assert reward["hider_0"] == 0.0


def test_bad_arguments_are_refused() -> None:
    for kwargs, field in (({"size": "hall"}, "size"), ({"lidar": -1}, "lidar"), ({"num_layouts": 0}, "num_layouts")):
        with pytest.raises(ConfigError, match=f"env_kwargs.{field}"):
            HideAndSeek(**kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", SIZES)
def test_layouts_have_room_for_all_and_vary(size: str) -> None:
    table, of = layout_table(size, 64), SIZES[size]
    assert layout_table(size, 64) is table
    real = np.concatenate([table["there"], table["here"]], 1)
    place = np.concatenate([table["thing"][..., :2], table["agent"]], 1)
    radius = np.concatenate(
        [np.hypot(*table["thing"][..., 3:].transpose(2, 0, 1)), np.full_like(table["agent"][..., 0], 0.2)], 1
    )
    apart = np.hypot(*(place[:, :, None] - place[:, None]).transpose(3, 0, 1, 2))
    pairs = real[:, :, None] & real[:, None] & ~np.eye(place.shape[1], dtype=bool)
    assert (apart > radius[:, :, None] + radius[:, None])[pairs].all()
    assert (np.abs(place[real]) < of.side / 2).all()
    counts = {tuple(row) for row in np.stack([table["there"].sum(1), table["here"].sum(1)], 1).tolist()}
    assert len(counts) > 3 if of.varies else counts == {(of.things, of.agents)}
    doors = {int((row[:, 0] < 500).sum()) for row in table["walls"]}
    assert len(doors) > 1, "rooms differ"
    long = table["thing"][..., 3] == 0.75
    assert long[table["there"]].any() == of.varies


def test_mirrors_keep_everything_where_it_belongs() -> None:
    """In all eight directions of one room nothing overlaps that did not, and ramps and rooms stay on their sides."""
    env = HideAndSeek(num_layouts=1, lidar=0)
    state = env.initial(200, torch.Generator().manual_seed(0))
    far = (state["place"].unsqueeze(2) - state["walls"].unsqueeze(1)[..., :2]).square().sum(3).sqrt()
    assert (far - far[:1]).abs().max() < 1e-4
    kinds = {tuple(round(v, 3) for v in row.flatten().tolist()) for row in state["place"]}
    assert len(kinds) == 8
    up = torch.stack([state["turn"][:, 2].cos(), state["turn"][:, 2].sin()], 1)
    to_box = state["place"][:, 0] - state["place"][:, 2]
    assert ((up * to_box).sum(1) - (up * to_box).sum(1)[0]).abs().max() < 1e-4


def scripted() -> tuple[HideAndSeek, Leaves]:
    """A hider looks at a box half a metre before it; a seeker looks away."""
    env = world("quadrant")
    state = ramp_at_wall(env)
    state["pos"][0] = torch.tensor([[0.0, 2.0], [-2.5, -2.5], [2.5, -2.5], [-2.0, 2.5]])
    state["place"][0, 0] = torch.tensor([0.6, 2.0])
    state["turn"][0, 0] = 0.0
    state["mark"] = state["place"]
    state["yaw"][0] = torch.tensor([0.0, 0.0, 0.0, torch.pi / 2])
    state, _, _ = env.transition(state, [nothing(env, 1)])
    return env, state


def test_what_agents_observe() -> None:
    env, state = scripted()
    (seen,) = env.observe(state)
    row = {key: x[0, 0] for key, x in seen.items()}
    assert row["obs/boxes_mask"].tolist() == [1.0, 1.0]
    assert row["obs/boxes_exists"].tolist() == [1.0, 1.0]
    torch.testing.assert_close(row["obs/boxes"][0, :4], torch.tensor([0.2, 0.0, 1.0, 0.0], dtype=torch.float64))
    # behind the hider: there for a critic, not for a policy
    assert row["obs/ramps_mask"].tolist() == [0.0]
    assert row["obs/ramps_exists"].tolist() == [1.0]
    assert row["obs/ramps"].abs().sum() > 0
    assert row["obs/agents_exists"].tolist() == [1.0, 1.0, 1.0]
    own = row["obs/self"].tolist()
    assert own[:4] == pytest.approx([0.0, 2.0 / 3.0, 1.0, 0.0])
    assert own[9] == 0.0
    assert own[10:] == pytest.approx([1.0 - 1 / env.preparation, 1.0 - 1 / env.max_steps])
    assert seen["obs/self"][0, 2, 9] == 1.0, "a seeker knows that it is one"
    assert row["obs/lidar"][0] == pytest.approx((0.6 - 0.25) / 5.0)
    blind = HideAndSeek(omniscient=False, lidar=0, num_layouts=16)
    (poor,) = blind.observe(state)
    assert set(poor) == {key for key in seen if not key.endswith("_exists")} - {"obs/lidar"}
    assert poor["obs/ramps"][0, 0].abs().sum() == 0.0
    assert torch.equal(poor["obs/boxes"][0, 0], row["obs/boxes"])


def test_the_numbers_of_an_episode() -> None:
    env, state = scripted()
    hold, begin = nothing(env, 1), state["place"].clone()
    hold[0, 0, 3] = 1
    hold[0, 0, 1] = 1  # to the right
    for _ in range(10):
        state, _, _ = env.transition(state, [hold])
    assert state["holds"][0, 0, 0]
    lock = nothing(env, 1)
    lock[0, 0, 4] = 1
    state, _, _ = env.transition(state, [lock])
    assert state["owner"].tolist() == [[1, 0, 0]]
    assert not state["holds"].any()
    moved = float((state["place"] - begin)[0, 0].square().sum().sqrt())
    early = {k: float(v[0]) for k, v in env.episode_stats(state).items()}
    assert moved > 0.3
    assert early["max_box_move_prep"] == pytest.approx(moved)
    assert (early["num_box_lock_prep"], early["num_box_lock"], early["max_box_move"], early["unseen"]) == (1, 1, 0, 0)
    state["t"][:] = env.preparation
    state["high"][0, 2] = True
    unlock = nothing(env, 1)
    unlock[0, 0, 4] = 2
    state, _, _ = env.transition(state, [unlock])
    late = {k: float(v[0]) for k, v in env.episode_stats(state).items()}
    assert (late["num_box_lock_prep"], late["num_box_lock"], late["max_box_move"]) == (1, 0, 0)
    assert late["max_box_move_prep"] == pytest.approx(moved)
    assert late["seekers_high"] in (0.0, 0.5)
    assert late["num_ramp_lock"] == 0
    assert late["unseen"] == 1.0 - float(state["sees"][0, 2:, :2].any())
    middle = state["pos"][0, :2].mean(0)
    assert late["ramp_to_hiders"] == pytest.approx(float((state["place"][0, 2] - middle).square().sum().sqrt()))
    assert set(late) == {*detectors("ramp"), "ramp_to_hiders", "surfed"}, "names are those of the grid"


@pytest.mark.parametrize("size", SIZES)
def test_returns_are_those_of_one_hider_and_one_seeker(size: str) -> None:
    """Sums of what agents were paid, over those that are there, also where one is paid less outside."""
    env = world(size)
    generator = torch.Generator().manual_seed(3)
    state, paid = env.initial(8, generator), torch.zeros(8, env.size.agents)
    for t in range(env.max_steps):
        act = (torch.rand(8, env.size.agents, 5, generator=generator) * torch.tensor([5, 5, 5, 2, 3])).long()
        state, reward, _ = env.transition(state, [act])
        if t == env.preparation:
            state["pos"][0, 0] = 3 * env.size.side
        paid += reward
    said = env.episode_stats(state)
    assert paid[0, 0] < -10
    for name, those in (("hider_return", slice(0, env.size.hiders)), ("seeker_return", slice(env.size.hiders, None))):
        wanted = paid[:, those].sum(1) / state["here"][:, those].sum(1)
        assert torch.allclose(said[name], wanted, atol=1e-3)


def test_the_share_of_the_preparation() -> None:
    env = HideAndSeek(lidar=0, num_layouts=16, preparation=0.0)
    state = env.initial(4, torch.Generator().manual_seed(1))
    assert env.active(state).all()
    assert (env.transition(state, [nothing(env, 4)])[1] != 0).all()
    assert HideAndSeek(lidar=0, num_layouts=16, preparation=0.25).preparation == 20
    for share in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=r"env_kwargs\.preparation"):
            HideAndSeek(preparation=share)


def test_only_who_locked_a_thing_unlocks_it() -> None:
    env, state = scripted()
    state["owner"][0, 0] = 2
    unlock = nothing(env, 1)
    unlock[0, 0, 4] = 2
    state, _, _ = env.transition(state, [unlock])
    assert state["owner"].tolist() == [[2, 0, 0]]
    push = nothing(env, 1)
    push[0, 0, 0], push[0, 0, 3] = 4, 1
    for _ in range(10):
        after, _, _ = env.transition(state, [push])
        assert torch.equal(after["place"][0, 0], state["place"][0, 0])
        assert not after["holds"].any()
        state = after


def test_what_both_teams_lock_at_once_belongs_to_the_hiders() -> None:
    env, state = scripted()
    state["t"][:] = env.preparation
    state["pos"][0, 2] = torch.tensor([1.2, 2.0])
    state["yaw"][0, 2] = torch.pi
    state, _, _ = env.transition(state, [nothing(env, 1)])
    lock = nothing(env, 1)
    for who, owner in (([2], 2), ([0], 1), ([0, 2], 1)):
        lock[..., 4] = 0
        lock[0, who, 4] = 1
        after, _, _ = env.transition(state, [lock])
        assert after["owner"].tolist() == [[owner, 0, 0]]


def test_surfing_takes_along_the_box_one_stands_on() -> None:
    go = torch.zeros(1, 4, 5, dtype=torch.int64)
    go[0, 0, 0], go[0, 0, 3] = 1, 1  # backwards, holding on
    moved = {}
    for surfing in (False, True):
        env = HideAndSeek(surfing=surfing, lidar=0, num_layouts=16)
        _, state = scripted()
        state["pos"][0, 0] = state["place"][0, 0]
        state["high"][0, 0] = True
        state["t"][:] = env.preparation
        begin, steps = state["place"].clone(), 0
        while state["high"][0, 0] and steps < 8:
            moved[surfing] = float((state["place"] - begin)[0, 0].norm()), steps
            state, _, _ = env.transition(state, [go])
            steps += 1
        assert env.episode_stats(state)["surfed"].tolist() == [float(surfing)]
    assert moved[True][0] > 0.3
    assert moved[True][1] == 7, "it never left the box"
    assert moved[False][0] == 0.0, "it walks off, and the box stays"


def test_the_picture_shows_who_is_where() -> None:
    env, state = scripted()
    state["owner"][0, 0] = 2
    picture = env.render(state, 0, pixels=264)
    assert picture.shape == (264, 264, 3)
    assert picture.dtype == np.uint8

    def at(x: float, y: float) -> tuple[int, ...]:
        scale = 264 / (2 * (3.0 + 0.6))
        return tuple(int(v) for v in picture[int((3.6 - y) * scale), int((x + 3.6) * scale)])

    assert at(0.0, 2.0) == TEAMS[0]
    assert at(2.5, -2.5) == TEAMS[1]
    assert at(0.6, 2.0) == BOX
    assert at(0.6, 2.0 + 0.22) == TEAMS[1], "a lock in the colour of its team"
    assert at(-3.05, 1.0) == WALLS
    assert at(0.25, 2.0) != FLOOR, "what the hider looks at"
    assert at(1.4, 2.0) == FLOOR, "behind the box it sees nothing"
    assert at(-0.5, 2.0) == FLOOR


def test_plays_behind_the_contract_of_vectors() -> None:
    env = HideAndSeek(lidar=0, num_layouts=16)
    teams = sides(lambda: HideAndSeek(lidar=0, num_layouts=16), ("hider_.*=hiders", "seeker_.*=seekers"), shared=True)
    vector = TensorTeam(env, 6, sides=teams, seed=1)
    vector.reset()
    waits = []
    for _ in range(env.max_steps):
        waits.append(not vector.outs["seekers"].active.any())  # type: ignore[union-attr]
        vector.send({who: torch.randint(0, 2, (12, 5)) for who in teams})
    assert waits == [t < env.preparation for t in range(env.max_steps)]
    episodes = vector.episodes()
    assert len(episodes) == 6
    paid = [(e.by_policy["hiders"], e.by_policy["seekers"]) for e in episodes]
    assert all(hiders == -seekers for hiders, seekers in paid)
    assert any(hiders for hiders, _ in paid)


def test_what_is_compiled_is_the_same_step_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced for a GPU, but run here: no break in the graph, and none compiled again, however the leaves lie in memory."""
    stats = torch._dynamo.utils.counters["stats"]
    monkeypatch.setitem(stats, "unique_graphs", 0)
    env, plain = HideAndSeek(compiled=True, lidar=4, num_layouts=16), HideAndSeek(lidar=4, num_layouts=16)
    assert isinstance(env._step, Fused), "a GPU would get it"
    env._step = Fused(env._stepped, devices=("cpu",), backend="eager")
    env._look = Fused(env._looked, devices=("cpu",), backend="eager")
    state = env.initial(4, torch.Generator().manual_seed(1))
    act = torch.tensor([4, 1, 2, 1, 1]).expand(4, 4, 5)
    with torch.no_grad():
        for _ in range(3):
            wanted, (found, reward, _) = plain.transition(state, [act]), env.transition(state, [act])
            assert torch.equal(reward, wanted[1])
            assert all(torch.equal(found[key], x) for key, x in wanted[0].items())
            (seen,), (shown,) = env.observe(found), plain.observe(found)
            assert all(torch.equal(seen[key], x) for key, x in shown.items())
            assert stats["unique_graphs"] == 2
            state = found  # the first came as worlds by leaves, this one lies the other way round
