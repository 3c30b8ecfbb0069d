"""The stages of hide-and-seek, on made-up curves and cross-tables: what is a claim, and what confirms it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.learning import seatings, stages
from benchmarks.learning.seatings import RANDOM, hiders_and_seekers, played
from benchmarks.learning.stages import (
    AT_RANDOM,
    CrossTable,
    Signs,
    at_random,
    claims,
    confirmed,
    cross_table,
    curve,
    curve_text,
    text_of,
)

import runnel as rl

RAMPS = {"max_ramp_move": 0.1, "max_ramp_move_prep": 0.2, "num_ramp_lock_prep": 0.0, "seekers_high": 0.01}
PAID = {"seeker_return": -25.0, "hider_return": 25.0}
CHANCE = {"num_box_lock_prep": 0.2, "max_box_move_prep": 0.5, "unseen": 0.3, **PAID, **RAMPS}
SIGNS = Signs(CHANCE)


def point(
    steps: int, seekers: float, *, locks: float = 0.2, moved: float = 0.5, unseen: float = 0.0, **more: float
) -> dict[str, Any]:
    found = {"steps": steps, "version": steps, "seeker_return": seekers, "hider_return": -seekers, "unseen": unseen}
    of_boxes = {"num_box_lock_prep": locks, "max_box_move_prep": moved, "max_box_move": 0.0, "num_box_lock": 0.0}
    return {**found, **of_boxes, **RAMPS, **more}


FORT = {"locks": 0.61, "moved": 1.51, "unseen": 0.4}
CLIMB = {"max_ramp_move": 0.6, "seekers_high": 0.2}


def test_stages_come_in_their_order() -> None:
    points = [point(1, -25), point(2, 3), point(3, 9), point(4, 5), point(5, -1, **FORT), point(6, -7, **FORT), point(7, 12)]
    found = claims(points, SIGNS)
    assert {k: (c.first["steps"], c.best["steps"]) for k, c in found.items()} == {"chase": (2, 3), "fort": (5, 6)}


BEFORE = [point(1, -25), point(2, 9), point(3, -7, **FORT)]
"""The hiders' return has been between -9 and 25: a fifth of that is 6.8."""
USED = point(4, 2, **FORT | CLIMB)


def test_ramps_and_the_defence_against_them() -> None:
    """What a fort is known by holds in all stages behind it, too, and its best is no longer looked for there."""
    cared = {"max_ramp_move_prep": 0.31, "max_ramp_move": 0.3, "seekers_high": 0.1}
    points = [*BEFORE, USED, point(5, 3, **FORT | CLIMB), point(6, -10, **FORT | cared), point(7, -12, **FORT | cared)]
    found = claims(points, SIGNS)
    places = {k: (c.first["steps"], c.best["steps"]) for k, c in found.items()}
    assert places == {"chase": (2, 2), "fort": (3, 3), "ramp": (4, 5), "defence": (6, 7)}


@pytest.mark.parametrize(
    "last",
    [
        point(4, 2, **FORT | CLIMB | {"max_ramp_move": 0.49}),
        point(4, 2, **FORT | CLIMB | {"seekers_high": 0.049}),
        point(4, -0.3, **FORT | CLIMB),  # has fallen by 6.7
    ],
)
def test_no_use_of_ramps_where_a_part_of_its_signature_is_missing(last: dict[str, Any]) -> None:
    assert "ramp" not in claims([*BEFORE, last], SIGNS)
    assert "ramp" not in claims([point(1, -25), point(2, 9), USED], SIGNS), "and none before a fort"


@pytest.mark.parametrize(
    ("change", "there"),
    [
        ({}, True),
        ({"max_ramp_move_prep": 0.29}, False),
        ({"max_ramp_move_prep": 0.29, "num_ramp_lock_prep": 0.3}, True),
        ({"seekers_high": 0.11}, False),
        ({"max_ramp_move": 0.31}, False),
        ({"hider_return": 4.7}, False),
    ],
)
def test_the_signature_of_the_defence(change: dict[str, float], there: bool) -> None:
    """A fifth of the range above the least return of the stage before, which is -2, is 4.8."""
    cared = {"max_ramp_move_prep": 0.31, "max_ramp_move": 0.3, "seekers_high": 0.1}
    last = {**point(5, -5, **FORT | cared), **change}
    assert ("defence" in claims([*BEFORE, USED, last], SIGNS)) == there


def test_where_random_seekers_win_a_chase_must_be_much_better() -> None:
    """Random seekers get 18 of 48: halfway from there is 33."""
    signs = Signs({**CHANCE, "seeker_return": 18.0}, most=48.0)
    assert claims([point(1, 18), point(2, 32.9)], signs) == {}
    assert [*claims([point(1, 18), point(2, 33.1)], signs)] == ["chase"]
    assert "fort" not in claims([point(1, 18), point(2, -5, **FORT)], signs)


def test_where_random_play_does_nothing_a_multiple_of_it_is_not_enough() -> None:
    signs = Signs(CHANCE, least={"num_box_lock_prep": 0.7})
    assert "fort" not in claims(BEFORE, signs)
    assert "fort" in claims([*BEFORE[:2], point(3, -7, **FORT | {"locks": 0.7})], signs)


def test_surfing_is_a_flag_beside_the_stages() -> None:
    found = claims([point(1, -25, surfed=0.05), point(2, -25, surfed=0.06), point(3, -25, surfed=0.2)], SIGNS)
    assert {k: (c.first["steps"], c.best["steps"]) for k, c in found.items()} == {"surf": (2, 3)}


def test_a_curve_has_whole_windows_of_updates() -> None:
    def row(version: int) -> dict[str, Any]:
        return {"version": version, "steps": 10 * version, "metrics": {"episode/unseen": version, "loss": 1.0}}

    early = {"version": 1, "steps": 10, "metrics": {"loss": 1.0}}  # no episode has ended yet
    found = curve([early, *(row(v) for v in range(2, 8))], 3)
    assert found == [{"steps": 30, "version": 3, "unseen": 2.5}, {"steps": 60, "version": 6, "unseen": 5.0}]


@pytest.mark.parametrize(
    "last",
    [
        point(3, -5, locks=0.59, moved=1.51, unseen=0.4),
        point(3, -5, locks=0.61, moved=1.49, unseen=0.4),
        point(3, -5, locks=0.61, moved=1.51, unseen=0.3),
        point(3, 0.1, **FORT),
    ],
)
def test_no_fort_where_a_part_of_its_signature_is_missing(last: dict[str, Any]) -> None:
    assert "fort" not in claims([point(1, -25), point(2, 3), last], SIGNS)


def test_hiders_who_never_were_chased_have_built_nothing_against_it() -> None:
    assert claims([point(1, -25), point(2, -5, **FORT)], SIGNS) == {}


def test_a_world_may_ask_for_more() -> None:
    points = [{**point(1, 3), "closed": 0.0}, {**point(2, -5, **FORT), "closed": 0.3}]
    assert "fort" in claims(points, Signs({**CHANCE, "closed": 0.1}, {"closed": 2.9}))
    assert "fort" not in claims(points, Signs({**CHANCE, "closed": 0.1}, {"closed": 3.1}))


@pytest.mark.parametrize(
    ("chased", "at_home", "held", "chase", "fort"),
    [
        (-5.0, -9.0, 12.0, True, True),
        (-0.5, -9.0, 12.0, False, True),  # within the interval
        (-5.0, -0.5, 12.0, True, False),
        (-5.0, -9.0, 0.5, True, False),
    ],
)
def test_what_confirms_a_claim(chased: float, at_home: float, held: float, chase: bool, fort: bool) -> None:
    mean = [[25.0, chased, 0.0], [30.0, at_home, 0.0], [30.0, held, 0.0]]
    table = CrossTable((AT_RANDOM, "chase", "fort"), mean, [[1.0] * 3] * 3, 100)
    assert confirmed(table) == {"chase": chase, "fort": fort}
    assert confirmed(CrossTable((AT_RANDOM, "chase"), mean, [[1.0] * 3] * 3, 100)) == {"chase": chase}
    assert f"| {AT_RANDOM} | +25.0 ± 1.0 | {chased:+.1f} ± 1.0 | +0.0 ± 1.0 |" in text_of(table.row())


def test_a_chase_must_beat_random_seekers_too() -> None:
    table = CrossTable((AT_RANDOM, "chase"), [[-18.0, -19.0], [0.0, 0.0]], [[1.0] * 2] * 2, 100)
    assert confirmed(table) == {"chase": False}


@pytest.mark.parametrize(("climbed", "defended", "ramp", "defence"), [(5.0, 2.0, True, True), (9.5, -0.5, False, False)])
def test_what_confirms_ramps_and_their_defence(climbed: float, defended: float, ramp: bool, defence: bool) -> None:
    """Hiders of the fort get 11 from its seekers; hiders of the stage of ramps get -2 from theirs. Intervals are 1."""
    mean = [[0.0] * 5, [0.0] * 5, [0.0, 12.0, 11.0, climbed, 0.0], [0.0, 0.0, 0.0, -2.0, 0.0], [0.0, 0.0, 0.0, defended, 0.0]]
    table = CrossTable((AT_RANDOM, "chase", "fort", "ramp", "defence"), mean, [[1.0] * 5] * 5, 100)
    found = confirmed(table)
    assert (found["ramp"], found["defence"]) == (ramp, defence)


def test_a_cross_table_has_hiders_of_each_against_seekers_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up games, in which hiders of `b` get 1 more than those of `a`, and all 10 more against seekers of `b`."""

    def games(world: str, seats: dict[str, str], **settings: Any) -> Any:
        assert (world, settings) == ("the world", {"episodes": 4, "seed": 3, "device": "cpu"})
        paid = 1.0 + (seats["hider"] == "run/b") + 10 * (seats["seeker"] == "run/b")
        return {"hider_return": paid + torch.tensor([-0.5, 0.5, -0.5, 0.5])}

    monkeypatch.setattr(stages, "played", games)
    table = cross_table({"a": "run/a", "b": "run/b"}, "the world", episodes=4, seed=3)
    assert table.mean == [[1.0, 11.0], [2.0, 12.0]]
    assert table.half == [[pytest.approx(1.96 * np.sqrt(1 / 3) / 2, abs=0.005)] * 2] * 2


@pytest.mark.parametrize("world", ["tensor:HideAndSeekGrid", "tensor:HideAndSeek"])
def test_players_at_random_get_what_matches_say(world: str) -> None:
    """The same games played another way: by `rl.match`, one step of the vector after the other."""
    kwargs = {"num_layouts": 64, "lidar": 0} if world == "tensor:HideAndSeek" else {}
    found = at_random(hiders_and_seekers(world, kwargs), episodes=256)
    match = rl.match({"a": "random", "b": "random"}, world, kwargs=kwargs, episodes=128, seed=1)
    place = list(match.seats).index("hider")
    returns = np.concatenate([games.returns[:, place] for games in match.games])
    width = 4 * returns.std() * (1 / len(returns) + 1 / 256) ** 0.5
    assert abs(found["hider_return"] - returns.mean()) < width
    assert width < 13, "of 96"


def test_seats_have_the_players_that_were_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that stands still and one that says which agents asked it: nobody else is asked, and in the order of agents."""
    asked: list[tuple[str, int]] = []

    class Net:
        noise_size = 1

        def __init__(self, name: str) -> None:
            self.name = name

        def to(self, device: torch.device) -> None: ...

        def eval(self) -> None: ...

        def act(self, rows: Any) -> Any:
            asked.append((self.name, len(rows["noise"])))
            return {"action": torch.zeros(len(rows["noise"]), dtype=torch.int64)}

    class Policy:
        def __init__(self, net: Net) -> None:
            self.net = net

    def load(player: str) -> Any:
        one = Policy(Net(player))
        return type("Loaded", (), {"policies": dict.fromkeys(("hider_0", "hider_1", "seeker_0", "seeker_1"), one)})

    monkeypatch.setattr(seatings.rl, "load", load)
    grid = hiders_and_seekers("tensor:HideAndSeekGrid")
    found = played(grid, {"hider": "x", "seeker": RANDOM}, episodes=3, seed=1)
    assert asked == [("x", 6)] * grid.max_steps
    assert found["max_box_move_prep"].sum() == 0.0, "hiders stand still, and seekers sleep"
    assert found["hider_return"].shape == (3,)


def test_a_curve_is_shown_beside_random_play() -> None:
    text = curve_text([point(n, n) for n in range(1, 40)], {**CHANCE, "max_box_move": 0.0, "num_box_lock": 0.0}, lines=3)
    assert len(text.splitlines()) == 2 + 1 + 3
    assert "| 1 | 1.00 | 0.00 |" in text
    assert "| 39 | 39.00 |" in text
