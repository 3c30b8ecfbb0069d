"""Overcooked's kitchens: single steps that Overcooked-AI gave, a world in plain Python step by step, and what always holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kitchen_by_hand import PLANES, THINGS, ByHand
from kitchen_states import busy, random_states
from record_kitchens import marks

from runnel.core.errors import ConfigError
from runnel.envs.device import Kitchen
from runnel.envs.device.kitchen.layouts import DISHES, FLOOR, LAYOUTS, ONIONS, POT, WINDOW
from runnel.envs.device.numpy_engine import columnwise

RECORDED = Path(__file__).with_name("kitchens.json")
OWN = ["XXXXXX", "XO1 SX", "XX  XX", "XP2 DX", "XXXXXX"]
"""A kitchen of a user, with a rim beyond the piles."""
TINY = ["PODS", "S12O", "DOPS"]
"""No counters, and two cells to stand on."""
ROOMS = [*LAYOUTS, OWN, TINY]


def rows_of(cases: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    return {key: np.array([case[key] for case in cases], order="F") for key in cases[0]}


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text()), ids=lambda case: f"{case['layout']}-{case['alone']}")
def test_steps_as_overcooked_ai_does(case: dict[str, Any]) -> None:
    """Random states of Overcooked-AI 1.1.0, with what it made of them: states, rewards, and the planes that it shows."""
    env = Kitchen(case["layout"], starts_alone=case["alone"], shaping=1.0, view="planes")
    steps = case["steps"]
    state = rows_of([step["before"] for step in steps])
    zeros = np.zeros(len(steps), np.float32)
    state |= {"soups": zeros, "shaped": zeros}
    after, reward, over = env.transition(state, [np.array([step["actions"] for step in steps])])
    for key, wanted in rows_of([step["after"] for step in steps]).items():
        assert after[key].tolist() == wanted.tolist(), key
    assert reward.tolist() == [[step["paid"] + worth for worth in step["worth"]] for step in steps]
    assert not over.any()
    seen = env.observe(after)[0]["obs"]
    assert [[marks(planes) for planes in both] for both in seen] == [step["planes"] for step in steps]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "lit"])
@pytest.mark.parametrize("layout", ROOMS, ids=str)
def test_plays_step_by_step_as_one_world_in_plain_python(layout: Any, alone: bool) -> None:
    """Fifteen times 40 random states, 2 steps each: states, rewards, both views, the global state and statistics."""
    kwargs: dict[str, Any] = {"shaping": 0.5, "starts_alone": alone, "cook_time": 7, "steps": 60}
    env, planes = (Kitchen(layout, view=view, **kwargs) for view in ("vector", "planes"))
    rng, happened = np.random.default_rng(0), {"sold": 0, "refused": 0, "taken": 0, "placed": 0, "dish": 0}
    for _ in range(15):
        state = random_states(env, 40, rng, cook_time=7, alone=alone)
        hands = [ByHand(env, state, w, cook_time=7, alone=alone) for w in range(40)]
        total = np.zeros((40, 2))
        for step in range(2):
            actions = busy(env, state, rng)
            state, reward, _ = env.transition(state, [actions])
            seen, drawn, known = env.observe(state)[0]["obs"], planes.observe(state)[0]["obs"], env.global_state(state)
            for w, hand in enumerate(hands):
                sold, worth = hand.step(actions[w].tolist())
                total[w] += sold / 20, sum(worth)
                assert reward[w].tolist() == [sold + 0.5 * x for x in worth]
                assert [divmod(cell, env.layout.width) for cell in state["at"][w].tolist()] == hand.at
                assert [THINGS[item] for item in state["held"][w]] == hand.holds
                if (w + step) % 5 == 0:  # what is seen takes long by hand, so each world has its turn
                    for i in range(2):
                        assert np.allclose(seen[w, i], hand.vector(i), atol=1e-6)
                        assert drawn[w, i].tolist() == hand.planes(i)
                    assert np.allclose(known[w], hand.vector(0), atol=1e-6)
        said = env.episode_stats(state)
        assert np.stack((said["soups"], said["shaped"]), 1).tolist() == total.tolist()
        for hand in hands:
            for event in hand.events:
                happened[event] += 1
    assert env.state_spec is not None
    assert (seen.shape[1:], known.shape[1:]) == ((2, *env.spec.agents["cook_0"].obs["obs"].shape), env.state_spec.shape)
    assert drawn.shape[1:] == (2, len(PLANES), env.layout.height, env.layout.width)
    assert min(happened.values()) >= 10, happened


@pytest.mark.parametrize("layout", ROOMS, ids=str)
def test_what_holds_in_every_state(layout: Any) -> None:
    """Onions and dishes come from piles and leave through the window alone, and nobody passes a counter."""
    env, rng = Kitchen(layout, starts_alone=False), np.random.default_rng(1)
    kitchen = env.layout
    state = random_states(env, 400, rng, cook_time=20, alone=False)
    # what is connected: each cell of the floor has the number of its room
    room = np.arange(len(kitchen.ground))
    for _ in range(len(room)):
        for cell in kitchen.cells(FLOOR):
            beside = [n for n in kitchen.ahead[:, cell] if kitchen.ground[n] == FLOOR]
            room[cell] = min(room[cell], *(room[n] for n in beside))
    first, sold = room[state["at"]], 0
    for _ in range(30):
        before, actions = state, busy(env, state, rng)
        state, reward, _ = env.transition(state, [actions])
        at, front = before["at"], kitchen.ground[kitchen.ahead[before["facing"], before["at"]]]
        used, free = actions == 5, before["held"] == 0
        served = used & (front == WINDOW) & (before["held"] > 2)
        onions, dishes = content(env, before)
        more, fewer = (used & free & (front == ONIONS)).sum(1), np.where(served, before["held"] - 2, 0).sum(1)
        assert (content(env, state)[0] == onions + more - fewer).all()
        assert (content(env, state)[1] == dishes + (used & free & (front == DISHES)).sum(1) - served.sum(1)).all()
        full = (served & (before["held"] == 5)).sum(1)
        assert (reward == 20.0 * full[:, None]).all()
        sold += int(full.sum())
        now = state["at"]
        assert (kitchen.ground[now] == FLOOR).all()
        assert (room[now] == first).all()
        assert (now[:, 0] != now[:, 1]).all()
        assert not ((now == at[:, ::-1]).all(1)).any()
        assert ((now == at) | (kitchen.ahead[:, at] == now).any(0)).all()
        assert (now[used | (actions == 4)] == at[used | (actions == 4)]).all()
        # a thing lies only in its kind of place, and a pot counts only while it cooks
        pots = state["things"][:, -kitchen.num_pots :]
        assert (state["things"][:, : -kitchen.num_pots] < 6).all()
        assert ((pots == 0) | (pots >= 6)).all()
        cooking = (pots >= 9) & (pots < 12)
        assert ((state["ticks"] > 0) == cooking).all()
        assert (state["ticks"] < 20).all()
    assert sold > 10


def content(env: Kitchen, state: Any) -> tuple[np.ndarray, np.ndarray]:
    """Onions and dishes in each world, wherever they are."""
    onions = np.array([0, 1, 0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3])
    dishes = np.array([0, 0, 1, 1, 1, 1, *[0] * 9])
    return tuple(kind[state["things"]].sum(1) + kind[state["held"]].sum(1) for kind in (onions, dishes))  # type: ignore[return-value]


def test_tensors_do_what_arrays_do() -> None:
    for layout, view in (("cramped_room", "vector"), ("asymmetric_advantages", "planes")):
        env, rng = Kitchen(layout, view=view, shaping=1.0), np.random.default_rng(2)
        state = random_states(env, 64, rng, cook_time=20, alone=True)
        other = {key: torch.from_numpy(np.ascontiguousarray(x)) for key, x in state.items()}
        for _ in range(20):
            actions = busy(env, state, rng)
            state, reward, _ = env.transition(state, [actions])
            other, paid, _ = env.transition(other, [torch.from_numpy(actions)])
            assert {key: x.tolist() for key, x in state.items()} == {key: x.tolist() for key, x in other.items()}
            assert reward.tolist() == paid.tolist()
            assert (env.observe(state)[0]["obs"] == env.observe(other)[0]["obs"].numpy()).all()
            assert (env.global_state(state) == env.global_state(other).numpy()).all()
        assert reward.dtype == np.float32
        assert paid.dtype == torch.float32


def test_first_states_and_the_picture() -> None:
    env = Kitchen()
    state = columnwise(env.initial(3, torch.Generator().manual_seed(0)))
    assert env.picture(state).splitlines()[:4] == ["XXPXX", "O  ^O", "X^  X", "XDXSX"]
    state["things"][1, -1], state["ticks"][1, 0], state["held"][1], state["things"][1, 0] = 11, 4, (5, 0), 2
    lines = env.picture(state, 1).splitlines()
    assert lines[0] == "XdPXX"
    assert lines[4:] == [
        "cook_0 at row 2, column 1, looks north, holds a soup of 3",
        "cook_1 at row 1, column 3, looks north, holds nothing",
        "pot at row 0, column 2: 3 onions, cooking for 4",
    ]
    assert env.layout.cells(POT) == [2]
    # counters that somebody can stand at, then pots: no corners
    assert env.layout.places == [1, 3, 10, 14, 17, 2]


@pytest.mark.parametrize(
    ("kwargs", "field", "fix"),
    [
        ({"layout": "kitchen"}, "layout", "cramped_room"),
        ({"layout": ["XX", "X"]}, "layout", "all of one length"),
        ({"layout": []}, "layout", "rows of letters"),
        ({"layout": ["XPTXX", "O1 2O", "XDXSX"]}, "layout", "no tomatoes"),
        ({"layout": ["XPXX", "O1 O", "XDSX"]}, "layout", "exactly one 2"),
        ({"layout": ["XXXX", "O12O", "XDSX"]}, "layout", "P, a pot"),
        ({"layout": ["XP X", "O12O", "XDSX"]}, "layout", "close the rim"),
        ({"steps": 0}, "steps", "at least 1"),
        ({"cook_time": 0}, "cook_time", "at least 1"),
        ({"shaping": -1.0}, "shaping", "use 0"),
        ({"view": "pixels"}, "view", "planes"),
    ],
)
def test_what_is_no_kitchen_is_refused(kwargs: dict[str, Any], field: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=fix) as refused:
        Kitchen(**kwargs)
    assert refused.value.field == f"env_kwargs.{field}"
