"""Populations of exact best responses: what each meta-solver comes to, as it is known from theory and from OpenSpiel."""

from __future__ import annotations

import numpy as np
import pytest

from runnel.core.errors import ConfigError
from runnel.games.oracles import psro
from runnel.games.small import SmallGame

pytest.importorskip("pyspiel")


def falling(solver: str, game: str = "kuhn_poker", iterations: int = 15) -> list[float]:
    return [step.exploitability for step in psro(game, solver=solver, iterations=iterations)]


def test_double_oracle_solves_kuhn_poker() -> None:
    """Measured: 0.458, 0.417, 0.167, 0.092, 0.111, 0.068, 0.056, and 0 from iteration 7 on."""
    steps = psro("kuhn_poker", iterations=9)
    found = [step.exploitability for step in steps]
    assert found[0] == pytest.approx(0.458333, abs=1e-6)
    assert max(found[7:]) < 1e-9
    assert SmallGame("kuhn_poker").values(steps[-1].strategy)[0] == pytest.approx(-1 / 18, abs=1e-9)
    assert [len(p) for p in steps[-1].probabilities] == [10, 10]


def test_the_last_opponent_alone_goes_in_circles() -> None:
    """Measured: 0.667, 1.167, 0.5, 0.167, and these four again and again."""
    found = falling("latest", iterations=30)
    assert found[6:-4] == pytest.approx(found[10:])
    assert min(found) > 0.15


def test_fictitious_play_comes_down_slowly() -> None:
    """Measured: 0.063 at iteration 15 and 0.010 at 300; OpenSpiel's fictitious play has 0.024 at 100."""
    found = falling("uniform", iterations=300)
    assert 0.03 < found[15] < 0.1
    assert found[300] < 0.015


def test_who_is_averse_to_risk_comes_down_too() -> None:
    """Measured at iteration 8: 0.003, and 0.001 at 15: what varies less is worth a little exploitability to it."""
    assert falling("risk_averse", iterations=8)[-1] < 0.01


def test_leduc_poker_is_below_three_tenths_at_iteration_50() -> None:
    """Measured: 0.263. On the way it goes up as well as down (2.9 at iteration 5)."""
    found = falling("nash", "leduc_poker", iterations=50)
    assert min(found[:50]) > 0.2
    assert found[50] < 0.3


def test_rock_paper_scissors_becomes_uniform_by_fictitious_play() -> None:
    game = SmallGame("turn_based_simultaneous_game(game=matrix_rps())")
    rock = tuple(np.eye(3)[:1] for _ in range(2))
    steps = psro(game, solver="uniform", iterations=400, start=(rock[0], rock[1]))
    for seat in (0, 1):
        assert steps[-1].strategy[seat][0] == pytest.approx(np.full(3, 1 / 3), abs=0.05)
    circling = psro(game, solver="latest", iterations=12, start=(rock[0], rock[1]))
    assert {step.exploitability for step in circling} == {1.0}


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="iterations"):
        psro("kuhn_poker", iterations=-1)
    with pytest.raises(ConfigError, match="nash"):
        psro("kuhn_poker", solver="best")
