"""Battles: single steps that SMAX gave, a world in plain Python step by step, and what must hold in every state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from battle_by_hand import ByHand
from battle_states import MIXED, at_random, focused, in_the_middle, legal, share_won

from runnel.core.errors import ConfigError
from runnel.envs.device import Battle
from runnel.envs.device.battle.units import UNITS
from runnel.envs.device.numpy_engine import columnwise
from runnel.envs.spaces import MASK

RECORDED = Path(__file__).with_name("battles.json")


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text()), ids=lambda case: str(case["units"]))
def test_steps_as_smax_does(case: dict[str, Any]) -> None:
    """Random states and what SMAX of jaxmarl 0.2.0 made of them, without its chance: all units, pay, ends and open actions."""
    env = Battle(case["units"])
    dtypes = {key: x.dtype for key, x in columnwise(env.initial(1, torch.Generator())).items()}
    state = {key: np.array(x, dtypes[key], order="F") for key, x in case["before"].items()}
    after, reward, over = env.transition(state, [np.array(case["actions"])])
    wanted = {key: np.array(x) for key, x in case["after"].items()}
    for key in ("x", "y", "health", "wait"):
        np.testing.assert_allclose(after[key], wanted[key], atol=2e-5, err_msg=key)
    np.testing.assert_allclose(reward, np.broadcast_to(wanted["reward"][:, None], reward.shape), atol=1e-6)
    assert (over == wanted["over"][:, None]).all()
    assert (env.observe(after)[0][MASK] == wanted["mask"]).all()
    assert (after["health"] < state["health"]).any()


@pytest.mark.parametrize("units", ["3m", "2s3z", MIXED], ids=str)
def test_plays_step_by_step_as_one_world_in_plain_python(units: Any) -> None:
    """24 worlds, 15 steps, each world set right before every step, since what pushes drives rounding apart. A threshold may
    fall to either side by rounding: of all world steps at most one in 100 may differ."""
    env, rng = Battle(units, bonus=0.5), np.random.default_rng(0)
    state, happened, wrong, num = in_the_middle(env, 24, seed=1), {"hits": 0, "over": 0, "dead": 0}, 0, 0
    for _ in range(15):
        actions, before = legal(env, state, rng), state
        state, reward, over = env.transition(state, [actions])
        seen, known, stats = env.observe(state)[0], env.global_state(state), env.episode_stats(state)
        for w in range(24):
            hand = ByHand(env.sides, before, w, bonus=0.5)
            paid, ended = hand.step(actions[w].tolist())
            num += 1
            if not np.allclose(state["health"][w], [u.health for u in hand.units], atol=1e-3):
                wrong += 1
                continue
            assert reward[w] == pytest.approx([paid] * len(hand.allies), abs=1e-5)
            assert over[w].tolist() == [ended] * len(hand.allies)
            for key in ("x", "y", "wait"):
                assert state[key][w] == pytest.approx([getattr(u, key) for u in hand.units], abs=2e-4), key
            foes = [hand.allies.index(e.foe) if e.foe else -1 for e in hand.enemies]
            assert state["aims"][w].tolist() == foes
            for i in range(len(hand.allies)):
                assert seen["obs"][w, i] == pytest.approx(hand.sees(i), abs=1e-4)
                assert seen[MASK][w, i].tolist() == hand.may(i)
            assert known[w] == pytest.approx(hand.everything(), abs=1e-4)
            here, there = ([u.lives for u in side] for side in (hand.allies, hand.enemies))
            assert float(stats["won"][w]) == float(any(here) and not any(there))
            assert stats["allies_left"][w] == pytest.approx(sum(here) / len(here))
            assert stats["enemies_left"][w] == pytest.approx(sum(there) / len(there))
            happened["hits"] += hand.hits
            happened["over"] += ended
            happened["dead"] += here.count(False) + there.count(False)
    assert wrong <= num // 100
    assert min(happened.values()) > 5, happened


@pytest.mark.parametrize("units", ["8m", "2s3z", MIXED], ids=str)
def test_what_holds_in_every_state(units: Any) -> None:
    env, rng = Battle(units), np.random.default_rng(2)
    num = len(env.sides.allies)
    state = in_the_middle(env, 128, seed=3)
    speed = np.array([UNITS[name].speed for name in env.sides.units])
    for _ in range(30):
        before, actions = state, legal(env, state, rng)
        state, reward, over = env.transition(state, [actions])
        alive, was = state["health"] > 0, before["health"] > 0
        # health only falls, nobody comes back, the dead lie where they are, and their side is paid all the same
        assert (state["health"] <= before["health"]).all()
        assert (state["health"] >= 0).all()
        assert not (alive & ~was).any()
        for key in ("x", "y"):
            assert (state[key][~was] == before[key][~was]).all()
        assert (reward >= 0).all()
        assert (reward <= 2.0).all()
        assert (reward == reward[:, :1]).all()
        gone = ~alive[:, :num].any(1) | ~alive[:, num:].any(1)
        assert (over == gone[:, None]).all()
        assert (env.active(state) == alive[:, :num]).all()
        # who lives and touches nobody goes no further than its speed
        far = np.hypot(state["x"] - before["x"], state["y"] - before["y"])
        apart = np.hypot(before["x"][:, :, None] - before["x"][:, None], before["y"][:, :, None] - before["y"][:, None])
        alone = (apart + 99 * np.eye(apart.shape[1]) > 7.0).all(2)
        assert (far <= speed * 0.5 + 1e-3)[alone].all()
        # strikes leave where one is, if nobody pushes
        still = alone[:, :num] & (actions >= 4)
        assert (far[:, :num][still] < 1e-5).all()
        seen = env.observe(state)[0]
        assert seen[MASK][:, :, 4].all()
        assert not seen[MASK][~alive[:, :num]][:, [0, 1, 2, 3]].any()
        assert (seen["obs"][~alive[:, :num]] == 0).all()
        assert seen["obs"].dtype == np.float32
        assert not (seen[MASK][:, :, 5:] & ~alive[:, None, num:]).any()


def test_tensors_do_what_arrays_do() -> None:
    env, rng = Battle("2s3z"), np.random.default_rng(4)
    state = in_the_middle(env, 64, seed=5)
    same = 0
    for _ in range(10):
        actions = legal(env, state, rng)
        other = {key: torch.from_numpy(np.ascontiguousarray(x)) for key, x in state.items()}
        after, reward, over = env.transition(state, [actions])
        twin, paid, ended = env.transition(other, [torch.from_numpy(actions)])
        alike = np.isclose(after["health"], twin["health"].numpy(), atol=1e-3).all(1)
        same += int(alike.sum())
        for key in after:
            np.testing.assert_allclose(after[key][alike], twin[key].numpy()[alike], atol=1e-3)
        np.testing.assert_allclose(reward[alike], paid.numpy()[alike], atol=1e-5)
        assert (over[alike] == ended.numpy()[alike]).all()
        assert paid.dtype == torch.float32
        assert reward.dtype == np.float32
        state = after
        for key in ("obs", MASK):
            mine, their = env.observe(state)[0][key][alike], env.observe(twin)[0][key].numpy()[alike]
            assert (np.abs(mine.astype(float) - their.astype(float)) < 1e-3).mean() > 0.999
    assert same >= 0.98 * 640


def test_first_states_and_the_picture() -> None:
    env = Battle("2s3z")
    state = columnwise(env.initial(500, torch.Generator().manual_seed(0)))
    x, y = state["x"], state["y"]
    # two may be pushed a little beyond the square in which they were drawn
    assert (np.abs(x[:, :5] - 8) < 3).all()
    assert (np.abs(x[:, 5:] - 24) < 3).all()
    assert (np.abs(y - 16) < 3).all()
    assert x[:, :5].std() > 1.0
    np.testing.assert_allclose(state["goals"], np.concatenate((32 - x[:, 5:], 32 - y[:, 5:]), 1), atol=1e-5)
    assert state["health"][0].tolist() == [160, 160, 150, 150, 150] * 2
    state["health"][1, 0], state["health"][1, -1] = 80, 0
    text = env.picture(state, 1).splitlines()
    assert len(text) == 34
    assert text[-2:] == [
        "0 stalker 50%, 1 stalker 100%, 2 zealot 100%, 3 zealot 100%, 4 zealot 100%",
        "a stalker 100%, b stalker 100%, c zealot 100%, d zealot 100%, e zealot 0%",
    ]
    assert "e" not in "".join(text[:32])


@pytest.mark.parametrize(
    ("kwargs", "field", "fix"),
    [
        ({"units": "9m"}, "units", "3m, 8m"),
        ({"units": [["marine"]]}, "units", "two lists"),
        ({"units": [["marine"], []]}, "units", "none of them empty"),
        ({"units": ["marine", "marine"]}, "units", "two lists"),
        ({"units": [["marine"], ["archer"]]}, "units", "no 'archer'"),
        ({"steps": 0}, "steps", "at least 1"),
        ({"bonus": -1.0}, "bonus", "0 or more"),
    ],
)
def test_what_is_no_battle_is_refused(kwargs: dict[str, Any], field: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=fix) as refused:
        Battle(**kwargs)
    assert refused.value.field == f"env_kwargs.{field}"


@pytest.mark.parametrize("units", ["3m", "2s3z"])
def test_who_wins_against_the_script(units: str) -> None:
    """Of 500 battles random allies were seen to win none, and allies who strike the weakest 57 % (3m) and 80 % (2s3z)."""
    rng = np.random.default_rng(0)
    won, earned = share_won(Battle(units), lambda env, state: at_random(env, state, rng), 100, 0)
    assert won <= 0.02
    assert earned < 0.4
    won, earned = share_won(Battle(units), focused, 100, 0)
    assert won > 0.4
    assert won < earned <= 2.0 * won + (1.0 - won)
