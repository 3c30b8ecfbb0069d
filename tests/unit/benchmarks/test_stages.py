"""The stages of hide-and-seek, on made-up curves and cross-tables: what is a claim, and what confirms it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.learning.stages import RANDOM, CrossTable, claims, confirmed, cross_table, curve_text, text_of

import runnel as rl

CHANCE = {"num_box_lock_prep": 0.2, "max_box_move_prep": 0.5, "unseen": 0.3, "seeker_return": -25.0, "hider_return": 25.0}


def point(steps: int, seekers: float, *, locks: float = 0.2, moved: float = 0.5, unseen: float = 0.0) -> dict[str, Any]:
    found = {"steps": steps, "version": steps, "seeker_return": seekers, "hider_return": -seekers, "unseen": unseen}
    return {**found, "num_box_lock_prep": locks, "max_box_move_prep": moved, "max_box_move": 0.0, "num_box_lock": 0.0}


FORT = {"locks": 0.61, "moved": 1.51, "unseen": 0.4}


def test_stages_come_in_their_order() -> None:
    points = [point(1, -25), point(2, 3), point(3, 9), point(4, 5), point(5, -1, **FORT), point(6, -7, **FORT), point(7, 12)]
    found = claims(points, CHANCE)
    assert {k: (c.first["steps"], c.best["steps"]) for k, c in found.items()} == {"chase": (2, 3), "fort": (5, 6)}


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
    assert "fort" not in claims([point(1, -25), point(2, 3), last], CHANCE)


def test_hiders_who_never_were_chased_have_built_nothing_against_it() -> None:
    assert claims([point(1, -25), point(2, -5, **FORT)], CHANCE) == {}


def test_a_world_may_ask_for_more() -> None:
    points = [{**point(1, 3), "closed": 0.0}, {**point(2, -5, **FORT), "closed": 0.3}]
    assert "fort" in claims(points, {**CHANCE, "closed": 0.1}, {"closed": 2.9})
    assert "fort" not in claims(points, {**CHANCE, "closed": 0.1}, {"closed": 3.1})


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
    table = CrossTable((RANDOM, "chase", "fort"), mean, [[1.0] * 3] * 3, 100)
    assert confirmed(table, "chase", "fort") == {"chase": chase, "fort": fort}
    assert confirmed(table, "chase", None) == {"chase": chase}
    assert f"| {RANDOM} | +25.0 ± 1.0 | {chased:+.1f} ± 1.0 | +0.0 ± 1.0 |" in text_of(table.row())


def test_a_cross_table_has_hiders_of_each_against_seekers_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up games, in which hiders of `a` get 1 and of `b` 2, and 10 more against seekers of `b`; seekers sit first."""

    def match(players: dict[str, str], env: str, **settings: Any) -> Any:
        assert settings == {"kwargs": None, "episodes": 4, "seed": 3, "cross_play": True}
        games = []
        for seeker in players:
            for hider in players:
                paid = 1.0 + (hider == "b") + 10 * (seeker == "b") + np.array([-0.5, 0.5, -0.5, 0.5])
                games.append(SimpleNamespace(players=(seeker, hider), returns=np.stack([-paid, paid], axis=1)))
        return SimpleNamespace(seats={"seeker": ("s",), "hider": ("h",)}, games=games)

    monkeypatch.setattr(rl, "match", match)
    table = cross_table({"a": "random", "b": "random"}, "tensor:HideAndSeekGrid", episodes=4, seed=3)
    assert table.mean == [[1.0, 11.0], [2.0, 12.0]]
    assert table.half == [[pytest.approx(1.96 * np.sqrt(1 / 3) / 2, abs=0.005)] * 2] * 2


def test_players_at_random_meet() -> None:
    table = cross_table({RANDOM: "random"}, "tensor:HideAndSeekGrid", episodes=64, seed=1)
    assert 15 < table.mean[0][0] < 33


def test_a_curve_is_shown_beside_random_play() -> None:
    text = curve_text([point(n, n) for n in range(1, 40)], {**CHANCE, "max_box_move": 0.0, "num_box_lock": 0.0}, lines=3)
    assert len(text.splitlines()) == 2 + 1 + 3
    assert "| 1 | 1.00 | 0.00 |" in text
    assert "| 39 | 39.00 |" in text
